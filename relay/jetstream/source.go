package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ushergo/usher/relay"
)

// SourceOptions of OpenSource.
type SourceOptions struct {
	Connection
	Stream string // [A-Za-z0-9_-]{1,100}; the source's one partition has its name
	Filter string // subjects to read, with NATS's wildcards; empty: all
}

// Source is a stream. It implements relay.Source and relay.Measurer. It reads by an ordered consumer, which the server
// forgets by itself, and acknowledges nothing: the relay keeps the cursor.
type Source struct {
	*conn
	stream, filter string
}

var (
	_ relay.Source   = (*Source)(nil)
	_ relay.Measurer = (*Source)(nil)
)

// OpenSource makes a source. It does not wait for a server.
func OpenSource(o SourceOptions) (*Source, error) {
	if !streamName.MatchString(o.Stream) {
		return nil, fmt.Errorf("relay: jetstream: stream %q: use 1 to 100 of A-Z a-z 0-9 _ -", o.Stream)
	}
	c, err := connect(o.Connection)
	if err != nil {
		return nil, err
	}
	return &Source{c, o.Stream, o.Filter}, nil
}

// Partitions implements relay.Source. A stream has an order, and so is one partition.
func (s *Source) Partitions(context.Context) ([]relay.Partition, error) {
	return []relay.Partition{{Name: s.stream}}, nil
}

// Close implements relay.Source.
func (s *Source) Close() error {
	s.nc.Close()
	return nil
}

// Behind implements relay.Measurer. With a filter it counts what the filter leaves out, too.
func (s *Source) Behind(ctx context.Context, _ string, after relay.Position) (int64, error) {
	_, info, err := s.look(ctx)
	if err != nil {
		return 0, err
	}
	seq, same, err := readPosition(after, info)
	if err != nil {
		return 0, err
	}
	if !same {
		seq = 0
	}
	first := max(seq+1, info.State.FirstSeq)
	return int64(info.State.LastSeq+1) - int64(min(first, info.State.LastSeq+1)), nil
}

func (s *Source) look(ctx context.Context) (jetstream.Stream, *jetstream.StreamInfo, error) {
	st, err := s.js.Stream(ctx, s.stream)
	if err != nil {
		return nil, nil, s.classed(fmt.Errorf("relay: stream %s: %w", s.stream, err))
	}
	return st, st.CachedInfo(), nil
}

// A position names the stream's birth and a sequence number, "1700000000000000.42": a stream that was deleted and made
// anew numbers from 1 again.
func writePosition(info *jetstream.StreamInfo, seq uint64) relay.Position {
	return relay.Position(strconv.FormatInt(info.Created.UnixMicro(), 10) + "." + strconv.FormatUint(seq, 10))
}

func readPosition(p relay.Position, info *jetstream.StreamInfo) (seq uint64, same bool, err error) {
	if p == "" {
		return 0, true, nil
	}
	birth, number, ok := strings.Cut(string(p), ".")
	created, err1 := strconv.ParseInt(birth, 10, 64)
	seq, err2 := strconv.ParseUint(number, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return 0, false, relay.Errorf(relay.Denied, "relay: %q is not a position in a JetStream stream", p)
	}
	return seq, created == info.Created.UnixMicro(), nil
}

// Open implements relay.Source.
func (s *Source) Open(ctx context.Context, partition string, from relay.Start) (relay.Reader, error) {
	st, info, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	r := &reader{s: s, stream: st, info: info}
	cfg := jetstream.OrderedConsumerConfig{InactiveThreshold: time.Minute, MaxResetAttempts: 3}
	if s.filter != "" {
		cfg.FilterSubjects = []string{s.filter}
	}
	first := info.State.FirstSeq
	switch {
	case from.After != "":
		seq, same, err := readPosition(from.After, info)
		if err != nil {
			return nil, err
		}
		r.last, r.known = seq, true
		switch {
		case !same || seq > info.State.LastSeq:
			seq, r.known = max(first, 1)-1, false
			r.lost(from.After, seq, "the stream was deleted and made anew", 0)
		case first > seq+1:
			r.lost(from.After, first-1, removed, int64(first-1-seq))
			seq = first - 1
		}
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, seq+1
	case !from.At.IsZero():
		at := from.At
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &at
	default:
		cfg.DeliverPolicy = jetstream.DeliverAllPolicy
	}
	consumer, err := st.OrderedConsumer(ctx, cfg)
	if err != nil {
		return nil, s.classed(fmt.Errorf("relay: stream %s: %w", partition, err))
	}
	if r.messages, err = consumer.Messages(jetstream.PullMaxMessages(500)); err != nil {
		return nil, s.classed(fmt.Errorf("relay: stream %s: %w", partition, err))
	}
	return r, nil
}

type reader struct {
	s        *Source
	stream   jetstream.Stream
	info     *jetstream.StreamInfo // of the opening
	messages jetstream.MessagesContext
	last     uint64 // the sequence number that was read last
	known    bool   // last is known
	gap      *relay.GapError
	behind   uint64        // the gap's end
	held     jetstream.Msg // stands behind the gap
}

const removed = "the stream's limits, or a purge, removed them"

func (r *reader) lost(from relay.Position, to uint64, cause string, n int64) {
	r.gap = &relay.GapError{Partition: r.s.stream, From: from, To: writePosition(r.info, to), Lost: n, Cause: cause}
	r.behind = to
}

// takeGap tells the gap, and stands behind it.
func (r *reader) takeGap() error {
	gap := r.gap
	r.gap, r.last, r.known = nil, r.behind, true
	return gap
}

const (
	quiet = time.Second          // how long Read waits for a first message
	more  = 2 * time.Millisecond // and for another, that may be on its way
)

// Read implements relay.Reader.
func (r *reader) Read(ctx context.Context, most int) (events []relay.Event, err error) {
	if r.gap != nil {
		return nil, r.takeGap()
	}
	for len(events) < most {
		m, err := r.next(ctx, len(events) > 0)
		switch {
		case errors.Is(err, nats.ErrTimeout):
			return events, nil
		case err != nil && len(events) > 0:
			return events, nil // it comes again
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, r.s.classed(fmt.Errorf("relay: stream %s: %w", r.s.stream, err))
		}
		meta, err := m.Metadata()
		if err != nil {
			return events, fmt.Errorf("relay: stream %s: %w", r.s.stream, err)
		}
		seq := meta.Sequence.Stream
		if r.known && seq > r.last+1 && r.missed(ctx, seq) {
			r.held = m
			if len(events) > 0 {
				return events, nil
			}
			return nil, r.takeGap()
		}
		if r.known && seq <= r.last {
			continue
		}
		r.last, r.known = seq, true
		events = append(events, r.event(m, meta))
	}
	return events, nil
}

func (r *reader) next(ctx context.Context, soon bool) (jetstream.Msg, error) {
	if m := r.held; m != nil {
		r.held = nil
		return m, nil
	}
	wait := quiet
	if soon {
		wait = more
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m, err := r.messages.Next(jetstream.NextContext(ctx))
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = nats.ErrTimeout
	}
	return m, err
}

// missed notes a gap before seq if there is one. Without a filter, every number that is not there was removed. With one,
// numbers are missing as a rule, and only those below the stream's first may have been ours.
func (r *reader) missed(ctx context.Context, seq uint64) bool {
	to := seq - 1
	lost := int64(to - r.last)
	if r.s.filter != "" {
		info, err := r.stream.Info(ctx)
		if err != nil || info.State.FirstSeq <= r.last+1 {
			return false
		}
		to, lost = min(info.State.FirstSeq-1, seq-1), 0
	}
	r.lost(writePosition(r.info, r.last), to, removed, lost)
	return true
}

// event makes an event of a message: one of usher's as it was, another named by stream and number.
func (r *reader) event(m jetstream.Msg, meta *jetstream.MsgMetadata) relay.Event {
	h := m.Headers()
	e := relay.Event{
		ID: "jetstream:" + r.s.stream + "/" + string(writePosition(r.info, meta.Sequence.Stream)), Key: m.Subject(), At: meta.Timestamp,
		Payload: m.Data(), Position: writePosition(r.info, meta.Sequence.Stream),
	}
	if key := h.Get(HeaderKey); key != "" {
		e.Key = key
		e.Type, e.Late = h.Get(HeaderType), h.Get(HeaderLate) == "true"
		if id := h.Get(jetstream.MsgIDHeader); id != "" {
			e.ID = id
		}
		if at, err := time.Parse(time.RFC3339Nano, h.Get(HeaderAt)); err == nil {
			e.At = at
		}
	}
	return e
}

// Position implements relay.Placed.
func (r *reader) Position() relay.Position {
	if !r.known {
		return ""
	}
	return writePosition(r.info, r.last)
}

// Close implements relay.Reader.
func (r *reader) Close() error {
	r.messages.Stop()
	return nil
}
