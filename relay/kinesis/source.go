package kinesis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/kinesis"

	"github.com/ushergo/usher/relay"
)

// Source is a stream. It implements relay.Source; shards are its partitions.
type Source struct {
	client  *api.Client
	stream  string
	timeout time.Duration
	poll    time.Duration // from one GetRecords of a shard to the next, at least
	marks   time.Duration // how often the cursor of a quiet shard is moved on in time

	mu   sync.Mutex // held while the service is asked, so that many who want to know ask once
	seen facts
}

// facts of a stream that matter here.
type facts struct {
	birth     string        // when it was made, Unix seconds
	retention time.Duration // how long it keeps records
	at        time.Time     // of this knowledge
}

var _ relay.Source = (*Source)(nil)

const (
	// pollEvery: a shard allows five reads a second, to all its readers.
	pollEvery = 250 * time.Millisecond
	// shardRate is what a shard allows to be read, in bytes a second.
	shardRate = 2 << 20
	// factsFor is how long a stream's facts are believed: shorter than it takes to make one anew, and long enough for a
	// thousand shards that are opened together (the service allows 20 such questions a second).
	factsFor = 2 * time.Second
)

// OpenSource makes a source of a stream. Nothing is connected to yet.
func OpenSource(ctx context.Context, o Options) (*Source, error) {
	client, err := connect(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	return &Source{client: client, stream: o.Stream, timeout: o.Timeout, poll: pollEvery, marks: 10 * time.Minute}, nil
}

// Close implements relay.Source.
func (s *Source) Close() error { return nil }

// Partitions implements relay.Source: all shards whose records are kept, the closed ones too.
func (s *Source) Partitions(ctx context.Context) ([]relay.Partition, error) {
	f, err := s.look(ctx, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var list []relay.Partition
	in := &api.ListShardsInput{StreamName: aws.String(s.stream)}
	for {
		out, err := s.client.ListShards(ctx, in)
		if err != nil {
			return nil, classed(s.stream, err, relay.Transient)
		}
		for _, shard := range out.Shards {
			p := relay.Partition{Name: partitionName(aws.ToString(shard.ShardId), f.birth)}
			for _, parent := range []*string{shard.ParentShardId, shard.AdjacentParentShardId} {
				if aws.ToString(parent) != "" {
					p.Parents = append(p.Parents, partitionName(*parent, f.birth))
				}
			}
			list = append(list, p)
		}
		if aws.ToString(out.NextToken) == "" {
			return list, nil
		}
		in = &api.ListShardsInput{NextToken: out.NextToken} // and no name beside it
	}
}

// look tells the stream's facts, as they were at most so long ago.
func (s *Source) look(ctx context.Context, age time.Duration) (facts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.seen
	if f.birth != "" && time.Since(f.at) < age {
		return f, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	out, err := s.client.DescribeStreamSummary(ctx, &api.DescribeStreamSummaryInput{StreamName: aws.String(s.stream)})
	if err != nil {
		return f, classed(s.stream, err, relay.Transient)
	}
	d := out.StreamDescriptionSummary
	if d == nil || d.StreamCreationTimestamp == nil {
		return f, fmt.Errorf("relay: kinesis: stream %s: the service does not say when it was made", s.stream)
	}
	f = facts{
		birth:     strconv.FormatInt(d.StreamCreationTimestamp.Unix(), 10),
		retention: time.Duration(max(aws.ToInt32(d.RetentionPeriodHours), 1)) * time.Hour,
		at:        time.Now(),
	}
	s.seen = f
	return f, nil
}

// Open implements relay.Source. It asks nothing of the service: Read does.
func (s *Source) Open(_ context.Context, partition string, from relay.Start) (relay.Reader, error) {
	shard, _, ok := strings.Cut(partition, ".")
	if !ok {
		return nil, relay.Errorf(relay.Denied, "relay: kinesis: %q is not a partition of a stream; write it as %s", partition, partitionName("shardId-000000000000", "1700000000"))
	}
	r := &reader{s: s, partition: partition, shard: shard, at: from.At}
	if from.After != "" {
		if r.place, ok = readPosition(from.After); !ok {
			return nil, relay.Errorf(relay.Denied, "relay: kinesis: %q is not a position in a shard", from.After)
		}
		r.at, r.ended = time.Time{}, r.place.gone
	}
	return r, nil
}

// A partition is named by its shard and by when its stream was made: one that is made anew numbers its shards from 0 again.
func partitionName(shard, birth string) string { return shard + "." + birth }

// place is a position: behind a record, and in time.
type place struct {
	seq  string // of the record that was read last; empty: none
	from int64  // nothing that is wanted lies between it and this moment, Unix milliseconds; 0: not known
	gone bool   // the shard is not there any more
}

const gone = "gone"

func (p place) position() relay.Position {
	switch {
	case p.gone:
		return gone
	case p.from == 0:
		return relay.Position(p.seq)
	}
	return relay.Position(p.seq + "@" + strconv.FormatInt(p.from, 10))
}

func readPosition(text relay.Position) (p place, ok bool) {
	if text == gone {
		return place{gone: true}, true
	}
	seq, from, timed := strings.Cut(string(text), "@")
	if timed {
		var err error
		if p.from, err = strconv.ParseInt(from, 10, 64); err != nil || p.from <= 0 {
			return p, false
		}
	}
	p.seq = seq
	digits := strings.Trim(seq, "0123456789") == "" && len(seq) <= 128
	return p, digits && (seq != "" || timed)
}
