package kinesis

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"

	"github.com/ushergo/usher/relay"
)

// Limits of PutRecords, in partition keys and data together. The service may allow a stream more.
const (
	maxRecords = 500
	maxRecord  = 1 << 20
	maxRequest = 5 << 20
)

// Sink is a stream. It implements relay.Sink.
type Sink struct {
	client *api.Client
	stream string
}

var _ relay.Sink = (*Sink)(nil)

// OpenSink makes a sink of a stream. Nothing is connected to yet.
func OpenSink(ctx context.Context, o Options) (*Sink, error) {
	client, err := connect(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Sink{client, o.Stream}, nil
}

// Limits implements relay.Sink. Whether an envelope still fits is seen in Send.
func (s *Sink) Limits() relay.Limits {
	return relay.Limits{Events: maxRecords, Bytes: maxRequest - maxRecords*512, EventBytes: maxRecord}
}

// Close implements relay.Sink.
func (s *Sink) Close() error { return nil }

// Send implements relay.Sink. Envelopes may make a batch longer than one request takes; then it is several.
func (s *Sink) Send(ctx context.Context, b relay.Batch) []error {
	errs := make([]error, len(b.Events))
	var records []types.PutRecordsRequestEntry
	var of []int // the event of each
	size := 0
	flush := func() {
		if len(records) > 0 {
			s.put(ctx, records, of, errs)
		}
		records, of, size = nil, nil, 0
	}
	for i := range b.Events {
		data, err := json.Marshal(b.Events[i].Envelope())
		if err != nil {
			errs[i] = relay.Classed(relay.Rejected, err)
			continue
		}
		key := partitionKey(b.Events[i].Key)
		n := len(data) + len(key)
		if n > maxRecord {
			errs[i] = relay.Errorf(relay.Rejected, "relay: kinesis: the record would have %d bytes, more than the %d that a stream takes", n, maxRecord)
			continue
		}
		if size+n > maxRequest || len(records) == maxRecords {
			flush()
		}
		records, of, size = append(records, types.PutRecordsRequestEntry{Data: data, PartitionKey: aws.String(key)}), append(of, i), size+n
	}
	flush()
	return errs
}

func (s *Sink) put(ctx context.Context, records []types.PutRecordsRequestEntry, of []int, errs []error) {
	invalid := relay.Transient // whichever it is, the relay finds it by halving batches
	if len(records) == 1 {
		invalid = relay.Rejected
	}
	out, err := s.client.PutRecords(ctx, &api.PutRecordsInput{StreamName: aws.String(s.stream), Records: records})
	if err == nil && len(out.Records) != len(records) {
		err = fmt.Errorf("the service answered for %d of %d records", len(out.Records), len(records))
	}
	err = classed(s.stream, err, invalid)
	for k, i := range of {
		switch {
		case err != nil:
			errs[i] = err
		case aws.ToString(out.Records[k].ErrorCode) != "":
			r := out.Records[k]
			errs[i] = relay.Errorf(classOf(*r.ErrorCode, relay.Rejected), "relay: kinesis: stream %s: %s: %s", s.stream, *r.ErrorCode, aws.ToString(r.ErrorMessage))
		case aws.ToString(out.Records[k].SequenceNumber) == "":
			errs[i] = errors.New("relay: kinesis: the service said nothing about the record")
		}
	}
}

// partitionKey makes a key fit: 1 to 256 characters of Unicode.
func partitionKey(key string) string {
	if key != "" && utf8.ValidString(key) && utf8.RuneCountInString(key) <= 256 {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
