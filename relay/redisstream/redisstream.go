// Package redisstream reads a Redis stream for a relay. The stream is the only partition; an entry's fields become one JSON
// object of strings, which is the payload.
//
// Position: an entry's id and, from Redis 7 on, how many entries there had ever been up to it, as 1700000000000-0#42: by that
// a gap is seen when the stream was trimmed (MAXLEN, MINID) before it was read. Entries deleted one by one (XDEL) are not
// missed, and hide a gap of as many. Before Redis 7 no gap is seen.
package redisstream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/relay"
)

// Options of New.
type Options struct {
	// Key is the field of an entry by which order is kept. Empty, or where it is missing: the whole stream is one key.
	Key string
	// Type is the field that says an entry's type. Default: type.
	Type string
}

// Source is a stream. It implements relay.Source and relay.Measurer.
type Source struct {
	dial   rueidis.ClientOption
	stream string
	name   string
	opts   Options

	mu   sync.Mutex
	have rueidis.Client // nil: not connected
}

var (
	_ relay.Source   = (*Source)(nil)
	_ relay.Measurer = (*Source)(nil)
)

// New makes a source of a stream's key. Nothing is connected to before it is read.
func New(dial rueidis.ClientOption, stream string, opts Options) *Source {
	dial.DisableCache = true
	if opts.Type == "" {
		opts.Type = "type"
	}
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-", r) {
			return r
		}
		return '_'
	}, stream)
	return &Source{dial: dial, stream: stream, name: name[:min(len(name), 128)], opts: opts}
}

// client connects where nobody has.
func (s *Source) client() (rueidis.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have == nil {
		c, err := rueidis.NewClient(s.dial)
		if err != nil {
			return nil, fmt.Errorf("relay: Redis of stream %s: %w", s.stream, err)
		}
		s.have = c
	}
	return s.have, nil
}

// Partitions implements relay.Source.
func (s *Source) Partitions(context.Context) ([]relay.Partition, error) {
	return []relay.Partition{{Name: s.name}}, nil
}

// Close implements relay.Source.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have != nil {
		s.have.Close()
	}
	return nil
}

// Open implements relay.Source.
func (s *Source) Open(_ context.Context, _ string, from relay.Start) (relay.Reader, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	r := &reader{s: s, client: client, id: "0-0", count: -1}
	switch {
	case from.After != "":
		id, count, counted := strings.Cut(string(from.After), "#")
		r.id = id
		if counted {
			n, err := strconv.ParseInt(count, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("relay: %q is no position in a Redis stream; write an entry's id", from.After)
			}
			r.count = n
		}
	case !from.At.IsZero(): // the last id there could be before that time
		r.id = strconv.FormatInt(from.At.UnixMilli()-1, 10) + "-18446744073709551615"
	}
	return r, nil
}

// Behind implements relay.Measurer.
func (s *Source) Behind(ctx context.Context, _ string, after relay.Position) (int64, error) {
	_, count, counted := strings.Cut(string(after), "#")
	if !counted {
		return 0, errors.New("relay: the position has no count")
	}
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		return 0, err
	}
	info, err := s.info(ctx)
	if err != nil {
		return 0, err
	}
	return max(info.added-n, 0), nil
}

// info is what XINFO STREAM says; added is -1 before Redis 7.
type info struct{ added, length int64 }

func (s *Source) info(ctx context.Context) (info, error) {
	client, err := s.client()
	if err != nil {
		return info{}, err
	}
	return readInfo(client.Do(ctx, client.B().XinfoStream().Key(s.stream).Build()))
}

func readInfo(res rueidis.RedisResult) (info, error) {
	out := info{added: -1}
	m, err := res.AsMap()
	if err != nil {
		if strings.Contains(err.Error(), "no such key") {
			return info{added: 0}, nil
		}
		return out, err
	}
	length := m["length"]
	if out.length, err = length.AsInt64(); err != nil {
		return out, err
	}
	if added, ok := m["entries-added"]; ok {
		out.added, err = added.AsInt64()
	}
	return out, err
}

// reader reads behind an entry.
type reader struct {
	s      *Source
	client rueidis.Client
	id     string
	count  int64 // of entries ever added up to id; -1: not known
}

// wait is how long one Read looks for something new.
const wait = 500 * time.Millisecond

// Read implements relay.Reader.
func (r *reader) Read(ctx context.Context, max int) ([]relay.Event, error) {
	entries, in, err := r.range_(ctx, max)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		b := r.client.B().Xread().Count(1).Block(wait.Milliseconds()).Streams().Key(r.s.stream).Id(r.id).Build()
		if err := r.client.Do(ctx, b).Error(); err != nil && !rueidis.IsRedisNil(err) {
			return nil, err
		}
		return nil, ctx.Err() // what there is now, the next Read takes
	}
	// Entries are numbered from the first that there ever was; the first that is there now has the number removed + 1.
	if in.added >= 0 {
		removed := in.added - in.length
		switch {
		case r.count < 0: // begun at a time, or at an id alone: numbered from behind, where nothing is deleted singly
			if r.id == "0-0" {
				r.count = removed
			} else if n, err := r.after(ctx); err == nil {
				r.count = in.added - n
			}
		case removed > r.count:
			gap := &relay.GapError{
				Partition: r.s.name, From: r.position(), Lost: removed - r.count,
				Cause: "the stream was trimmed before it was read",
			}
			r.count = removed
			gap.To = r.position()
			return nil, gap
		}
	}
	events := make([]relay.Event, len(entries))
	for i, e := range entries {
		r.id = e.ID
		if r.count >= 0 {
			r.count++
		}
		if events[i], err = r.event(e); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// after counts the entries behind the reader's place.
func (r *reader) after(ctx context.Context) (int64, error) {
	const script = `return #redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 100000)`
	return r.client.Do(ctx, r.client.B().Eval().Script(script).Numkeys(1).Key(r.s.stream).Arg(r.id).Build()).AsInt64()
}

// range_ reads entries and what the stream is like in one step.
func (r *reader) range_(ctx context.Context, max int) ([]rueidis.XRangeEntry, info, error) {
	b := r.client.B()
	var out []rueidis.XRangeEntry
	var in info
	err := r.client.Dedicated(func(c rueidis.DedicatedClient) error {
		res := c.DoMulti(ctx, b.Multi().Build(), b.Xrange().Key(r.s.stream).Start("("+r.id).End("+").Count(int64(min(max, 1000))).Build(),
			b.Arbitrary("XINFO", "STREAM").Keys(r.s.stream).Build(), b.Exec().Build())
		list, err := res[3].ToArray()
		if err != nil {
			return err
		}
		if len(list) != 2 {
			return fmt.Errorf("relay: Redis answered a transaction of two with %d", len(list))
		}
		if out, err = list[0].AsXRange(); err != nil {
			return err
		}
		if err := list[1].Error(); err != nil {
			if strings.Contains(err.Error(), "no such key") {
				in = info{}
				return nil
			}
			return err
		}
		m, err := list[1].AsMap()
		if err != nil {
			return err
		}
		in.added = -1
		length := m["length"]
		if in.length, err = length.AsInt64(); err != nil {
			return err
		}
		if added, ok := m["entries-added"]; ok {
			in.added, err = added.AsInt64()
		}
		return err
	})
	return out, in, err
}

func (r *reader) position() relay.Position {
	if r.count < 0 {
		return relay.Position(r.id)
	}
	return relay.Position(r.id + "#" + strconv.FormatInt(r.count, 10))
}

// Position implements relay.Placed.
func (r *reader) Position() relay.Position {
	if r.id == "0-0" {
		return ""
	}
	return r.position()
}

func (r *reader) event(e rueidis.XRangeEntry) (relay.Event, error) {
	ms, _, _ := strings.Cut(e.ID, "-")
	at, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return relay.Event{}, fmt.Errorf("relay: entry %s: %w", e.ID, err)
	}
	fields := map[string]any{}
	for k, v := range e.FieldValues {
		if utf8.ValidString(v) {
			fields[k] = v
		} else {
			fields[k] = map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(v))}
		}
	}
	payload, err := json.Marshal(fields)
	if err != nil {
		return relay.Event{}, err
	}
	out := relay.Event{
		ID: r.s.stream + "/" + e.ID, Key: e.FieldValues[r.s.opts.Key], Type: e.FieldValues[r.s.opts.Type], At: time.UnixMilli(at), Payload: payload,
		Position: r.position(),
	}
	if r.s.opts.Key == "" || out.Key == "" {
		out.Key = r.s.name
	}
	return out, nil
}

// Close implements relay.Reader. The client is the source's.
func (r *reader) Close() error { return nil }
