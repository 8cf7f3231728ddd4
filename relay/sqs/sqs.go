// Package sqs sends events to an SQS queue, and keeps dead letters in one.
//
// Promise of the sink: an event is taken when the queue has it. The body is a relay.Envelope as JSON; attributes say id, type
// and key. A FIFO queue (its name ends in .fifo) gets the event's key as message group, so that order is kept by ticket, and
// the event's id for de-duplication, which SQS remembers for five minutes; a standard queue keeps no order.
package sqs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/ushergo/usher/relay"
)

// Options of Open and OpenDeadLetters. Credentials are found by the SDK's default chain.
type Options struct {
	Queue    string // its URL
	Region   string // default: by the SDK's rules
	Endpoint string // default: the service's
}

// Sink is a queue. It implements relay.Sink.
type Sink struct {
	client *api.Client
	queue  string
	fifo   bool
}

var _ relay.Sink = (*Sink)(nil)

// Open makes a sink of a queue. Nothing is connected to yet.
func Open(ctx context.Context, o Options) (*Sink, error) {
	client, err := connect(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Sink{client, o.Queue, strings.HasSuffix(o.Queue, ".fifo")}, nil
}

func connect(ctx context.Context, o Options) (*api.Client, error) {
	if o.Queue == "" {
		return nil, errors.New("relay: sqs needs the URL of a queue")
	}
	var opts []func(*awsconfig.LoadOptions) error
	if o.Region != "" {
		opts = append(opts, awsconfig.WithRegion(o.Region))
	}
	conf, err := awsconfig.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("relay: sqs: %w", err)
	}
	return api.NewFromConfig(conf, func(c *api.Options) {
		c.RetryMaxAttempts = 1 // the relay tries again, by its own rules
		if o.Endpoint != "" {
			c.BaseEndpoint = aws.String(o.Endpoint)
		}
	}), nil
}

// Limits implements relay.Sink: of SQS, 10 messages and 256 KiB, with room for envelopes.
func (s *Sink) Limits() relay.Limits {
	return relay.Limits{Events: 10, Bytes: 160 << 10, EventBytes: 160 << 10}
}

// Close implements relay.Sink.
func (s *Sink) Close() error { return nil }

// Send implements relay.Sink.
func (s *Sink) Send(ctx context.Context, b relay.Batch) []error {
	errs := make([]error, len(b.Events))
	in := &api.SendMessageBatchInput{QueueUrl: aws.String(s.queue)}
	for i := range b.Events {
		e := &b.Events[i]
		entry, err := s.entry(e)
		if err != nil {
			errs[i] = relay.Classed(relay.Rejected, err)
			continue
		}
		entry.Id = aws.String(strconv.Itoa(i))
		in.Entries = append(in.Entries, entry)
		errs[i] = errors.New("the queue said nothing about the event")
	}
	if len(in.Entries) == 0 {
		return errs
	}
	out, err := s.client.SendMessageBatch(ctx, in)
	if err != nil {
		return relay.All(len(b.Events), classed(err))
	}
	for _, ok := range out.Successful {
		if i, err := strconv.Atoi(aws.ToString(ok.Id)); err == nil && i < len(errs) {
			errs[i] = nil
		}
	}
	for _, bad := range out.Failed {
		if i, err := strconv.Atoi(aws.ToString(bad.Id)); err == nil && i < len(errs) {
			errs[i] = failed(bad)
		}
	}
	return errs
}

func (s *Sink) entry(e *relay.Event) (types.SendMessageBatchRequestEntry, error) {
	body, err := json.Marshal(e.Envelope())
	if err != nil {
		return types.SendMessageBatchRequestEntry{}, err
	}
	text := func(v string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(v)}
	}
	entry := types.SendMessageBatchRequestEntry{
		MessageBody:       aws.String(string(body)),
		MessageAttributes: map[string]types.MessageAttributeValue{"usher-event-id": text(e.ID), "usher-event-key": text(e.Key)},
	}
	if e.Type != "" {
		entry.MessageAttributes["usher-event-type"] = text(e.Type)
	}
	if s.fifo {
		entry.MessageGroupId, entry.MessageDeduplicationId = aws.String(token(e.Key)), aws.String(token(e.ID))
	}
	return entry, nil
}

// token makes a text fit for a group or a de-duplication id: at most 128 of some characters.
func token(s string) string {
	fits := len(s) > 0 && len(s) <= 128 && strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
	if fits {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func failed(bad types.BatchResultErrorEntry) error {
	err := fmt.Errorf("%s: %s", aws.ToString(bad.Code), aws.ToString(bad.Message))
	if c, ok := classes(aws.ToString(bad.Code)); ok {
		return relay.Classed(c, err)
	}
	if bad.SenderFault {
		return relay.Classed(relay.Rejected, err)
	}
	return err
}

func classed(err error) error {
	var e smithy.APIError
	if errors.As(err, &e) {
		if c, ok := classes(e.ErrorCode()); ok {
			return relay.Classed(c, err)
		}
	}
	return err
}

func classes(code string) (relay.Class, bool) {
	code = code[strings.LastIndexByte(code, '.')+1:] // AWS.SimpleQueueService.NonExistentQueue
	switch code {
	case "ThrottlingException", "Throttling", "RequestThrottled", "RequestThrottledException", "KmsThrottled", "TooManyRequestsException", "OverLimit":
		return relay.Throttled, true
	case "AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "ExpiredToken",
		"QueueDoesNotExist", "NonExistentQueue", "InvalidAddress", "KmsAccessDenied", "KmsDisabled", "KmsNotFound":
		return relay.Denied, true
	case "InvalidMessageContents", "InvalidParameterValue":
		return relay.Rejected, true
	}
	return 0, false
}
