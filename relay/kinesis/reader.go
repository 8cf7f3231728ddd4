package kinesis

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"

	"github.com/ushergo/usher/relay"
)

// reader reads one shard. It implements relay.Reader and relay.Placed.
type reader struct {
	s                *Source
	partition, shard string
	at               time.Time // where to begin when place says nothing; zero: with the oldest
	place            place     // behind what was returned

	iterator  string
	retention time.Duration // of the stream, when the iterator was made
	marked    time.Time     // when place has last been moved

	next      time.Time // no GetRecords before it
	throttled int       // so many times in a row
	doubt     bool      // the record at place has not been seen to be there yet
	empty     int       // answers without records, at the tip and in doubt
	gap       *relay.GapError
	held      []types.Record // behind a gap
	ended     bool           // nothing comes behind held
}

const (
	quiet      = time.Second      // how long Read waits for something
	edge       = 10 * time.Minute // so near to being trimmed, nothing is taken for granted
	skew       = time.Minute      // that clocks may differ
	throttles  = 10               // in a row, after which it is told
	maxPerRead = 10_000           // of GetRecords
)

// Read implements relay.Reader.
func (r *reader) Read(ctx context.Context, most int) ([]relay.Event, error) {
	end := time.Now().Add(quiet)
	for {
		switch {
		case r.gap != nil:
			gap := r.gap
			r.gap = nil
			return nil, gap
		case len(r.held) > 0:
			n := min(len(r.held), most)
			events := r.events(r.held[:n])
			r.held = r.held[n:]
			return events, nil
		case r.ended:
			return nil, relay.ErrEnd
		}
		if at := r.at; r.place == (place{}) && time.Now().Before(at) && r.next.Before(at) {
			r.next = at // the service refuses moments to come
		}
		if r.next.After(end) {
			return nil, wait(ctx, time.Until(end))
		}
		if err := wait(ctx, time.Until(r.next)); err != nil {
			return nil, err
		}
		if err := r.fetch(ctx, most); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, err
		}
		if time.Now().After(end) && r.gap == nil && len(r.held) == 0 && !r.ended {
			return nil, nil
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// fetch asks once, and puts what comes of it into held, gap and ended.
func (r *reader) fetch(ctx context.Context, most int) error {
	ctx, cancel := context.WithTimeout(ctx, r.s.timeout)
	defer cancel()
	begun := time.Now()
	r.next = begun.Add(r.s.poll)
	if r.iterator == "" {
		if err := r.locate(ctx); err != nil || r.iterator == "" {
			return r.failed(err)
		}
	}
	limit := most
	if r.doubt {
		limit++ // for the one that is there already
	}
	out, err := r.s.client.GetRecords(ctx, &api.GetRecordsInput{ShardIterator: aws.String(r.iterator), Limit: aws.Int32(int32(min(limit, maxPerRead)))})
	if err != nil {
		return r.failed(err)
	}
	r.throttled = 0
	r.iterator = aws.ToString(out.NextShardIterator)
	r.ended = r.iterator == ""
	behind := time.Duration(aws.ToInt64(out.MillisBehindLatest)) * time.Millisecond
	size := 0
	for _, rec := range out.Records {
		size += len(rec.Data) + len(aws.ToString(rec.PartitionKey))
	}
	if pause := time.Duration(float64(size) / shardRate * float64(time.Second)); pause > r.s.poll {
		r.next = begun.Add(pause)
	}
	r.held = out.Records
	switch {
	case r.doubt:
		r.settle(behind)
	case len(r.held) == 0 && behind == 0 && !r.ended:
		r.mark(begun)
	}
	if behind > r.retention-edge && !r.doubt {
		r.iterator = "" // what comes next may be trimmed before it is asked for: look whether place is still there
	}
	return nil
}

// failed sorts out an error: what only means to wait or to ask for another iterator is none.
func (r *reader) failed(err error) error {
	var expired *types.ExpiredIteratorException
	switch {
	case err == nil:
		return nil
	case errors.As(err, &expired):
		r.iterator = ""
		return nil
	case classOf(code(err), relay.Transient) == relay.Throttled && r.throttled < throttles:
		r.throttled++
		r.next = time.Now().Add(r.s.poll + time.Duration(rand.Float64()*float64(r.s.poll<<min(r.throttled, 5))))
		return nil
	}
	r.iterator = ""
	return classed(r.s.stream, err, relay.Transient)
}

// locate gets an iterator for place. It sets doubt when trimming may have gone beyond place.
func (r *reader) locate(ctx context.Context) error {
	f, err := r.s.look(ctx, factsFor)
	if err != nil {
		return err
	}
	r.retention = f.retention
	if r.partition != partitionName(r.shard, f.birth) {
		r.vanish("the stream was deleted and made anew")
		return nil
	}
	in := &api.GetShardIteratorInput{StreamName: aws.String(r.s.stream), ShardId: aws.String(r.shard), ShardIteratorType: types.ShardIteratorTypeTrimHorizon}
	at := func(t time.Time) {
		in.ShardIteratorType, in.Timestamp = types.ShardIteratorTypeAtTimestamp, aws.Time(t)
	}
	from := time.UnixMilli(r.place.from)
	fresh := r.place.from > 0 && time.Since(from) < f.retention-edge
	r.doubt, r.empty = !fresh, 0
	switch {
	case r.place == (place{}):
		r.doubt = false
		if !r.at.IsZero() {
			at(r.at)
		}
	case r.place.seq == "" && fresh:
		at(from)
	case r.place.seq == "":
	case fresh:
		in.ShardIteratorType, in.StartingSequenceNumber = types.ShardIteratorTypeAfterSequenceNumber, aws.String(r.place.seq)
	default:
		in.ShardIteratorType, in.StartingSequenceNumber = types.ShardIteratorTypeAtSequenceNumber, aws.String(r.place.seq)
	}
	out, err := r.s.client.GetShardIterator(ctx, in)
	var missing *types.ResourceNotFoundException
	var invalid *types.InvalidArgumentException
	switch {
	case errors.As(err, &missing):
		return r.missing(ctx, err)
	case errors.As(err, &invalid) && in.Timestamp != nil && time.Since(*in.Timestamp) < skew:
		return nil // a moment to come, by the service's clock
	case errors.As(err, &invalid) && in.StartingSequenceNumber != nil:
		// The shard does not know the number any more.
		out, err = r.s.client.GetShardIterator(ctx, &api.GetShardIteratorInput{StreamName: in.StreamName, ShardId: in.ShardId, ShardIteratorType: types.ShardIteratorTypeTrimHorizon})
		r.doubt = true
	}
	if err == nil {
		r.iterator = aws.ToString(out.ShardIterator)
	}
	return err
}

// missing tells a shard that is gone from a stream that is.
func (r *reader) missing(ctx context.Context, err error) error {
	list, listErr := r.s.Partitions(ctx)
	if listErr != nil {
		return listErr
	}
	for _, p := range list {
		if p.Name == r.partition {
			return err
		}
	}
	r.vanish("the shard is not there any more")
	return nil
}

// vanish ends the shard with a gap: what had not been read of it is lost.
func (r *reader) vanish(cause string) {
	r.lost(place{gone: true}, cause)
	r.ended = true
}

func (r *reader) lost(to place, cause string) {
	from := r.place.position()
	r.gap, r.place = &relay.GapError{Partition: r.partition, From: from, To: to.position(), Cause: cause}, to
}

// settle sees whether the record at place is among the first that are kept.
func (r *reader) settle(behind time.Duration) {
	const cause = "the stream's retention was over before they were read (the record at the cursor is not there any more)"
	switch {
	case len(r.held) > 0 && aws.ToString(r.held[0].SequenceNumber) == r.place.seq:
		r.held = r.held[1:]
	case len(r.held) > 0:
		r.lost(place{from: max(arrived(r.held[0]).UnixMilli(), 1)}, cause)
	case r.ended:
		r.lost(place{gone: true}, cause)
	case behind > 0:
		return
	default:
		if r.empty++; r.empty < 3 { // an answer without records does not prove that there are none
			return
		}
		r.lost(place{from: time.Now().Add(-skew).UnixMilli()}, cause)
	}
	r.doubt = false
}

// mark notes that the shard has been read to its tip.
func (r *reader) mark(begun time.Time) {
	moment := begun.Add(-skew)
	if moment.Before(r.at) || begun.Sub(r.marked) < r.s.marks {
		return
	}
	r.place.from, r.marked = moment.UnixMilli(), begun
}

// Position implements relay.Placed.
func (r *reader) Position() relay.Position { return r.place.position() }

// Close implements relay.Reader.
func (r *reader) Close() error { return nil }

func (r *reader) events(records []types.Record) []relay.Event {
	events := make([]relay.Event, len(records))
	for i, rec := range records {
		events[i] = r.event(rec)
	}
	if n := len(records); n > 0 {
		r.place, r.marked = place{seq: aws.ToString(records[n-1].SequenceNumber)}, time.Now()
	}
	return events
}

// event makes an event of a record: one of usher's as it was, another named by stream, shard and sequence number.
func (r *reader) event(rec types.Record) relay.Event {
	key, seq := aws.ToString(rec.PartitionKey), aws.ToString(rec.SequenceNumber)
	e, ok := ours(rec.Data, key)
	if !ok {
		e = relay.Event{ID: "kinesis:" + r.s.stream + "/" + r.shard + "/" + seq, Key: key, At: arrived(rec), Payload: rec.Data}
	}
	e.Position = relay.Position(seq)
	return e
}

func arrived(rec types.Record) time.Time {
	if t := rec.ApproximateArrivalTimestamp; t != nil {
		return *t
	}
	return time.Now()
}

// ours reads what the sink wrote. A foreign record may have an id and a key as well, so it must be an envelope and nothing
// beside, of an event whose key is the record's.
func ours(data []byte, key string) (relay.Event, bool) {
	var env relay.Envelope
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&env); err != nil || d.More() || env.ID == "" || env.Key == "" || env.At.IsZero() || env.Payload == nil && env.Binary == nil {
		return relay.Event{}, false
	}
	return env.Event(), partitionKey(env.Key) == key
}
