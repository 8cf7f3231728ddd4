// Package kinesis reads and writes Kinesis data streams.
//
// Promise of the sink: an event is taken when its shard has stored it. A record is a relay.Envelope as JSON; its partition
// key is the event's key, the ticket's id, so that all events of a ticket go to one shard. What is sent twice is two
// records with one id. Kinesis knows no fences and no conditions: a zombie's last batch, or a request that was slow to
// arrive, may be stored behind later ones, as duplicates. The first record of each event keeps the order of its key.
//
// Promise of the source: every record of every shard, a shard's parents before it. Shards are its partitions; leases,
// their balance over processes, checkpoints and hand-over are the relay's. Each shard is polled, four times a second at
// most, which leaves a fifth request to somebody else; enhanced fan-out is not used, and aggregates of the Kinesis
// Producer Library are carried as they are.
//
// # What was trimmed
//
// Kinesis does not say that records were trimmed before they were read: it goes on with the oldest it has. So a reader
// that comes back looks for the record at its cursor. If that one is there, nothing behind it is gone, as a shard
// loses its oldest first. If it is not, others may be gone with it, which is told as a gap of unknown length. For that a
// quiet shard does not look like one that was trimmed, the cursor of a shard that has been read to its tip is moved on in
// time, "4955…@1700000000000": behind that record, with nothing before that moment (Unix milliseconds).
//
// A stream that was deleted and made anew has other partitions, as the time of its making is part of their names; those of
// the old one end with a gap.
package kinesis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	api "github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/smithy-go"

	"github.com/ushergo/usher/relay"
)

// Options of OpenSource and OpenSink. Credentials are found by the SDK's default chain: environment, shared config, web
// identity, container, instance.
type Options struct {
	Stream   string        // its name; it must exist
	Region   string        // default: by the SDK's rules
	Endpoint string        // default: the service's
	Timeout  time.Duration // of one request of the source's; default 30 s
}

var streamName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

func connect(ctx context.Context, o Options) (*api.Client, error) {
	if !streamName.MatchString(o.Stream) {
		return nil, fmt.Errorf("relay: kinesis: stream %q: use 1 to 128 of A-Z a-z 0-9 _ . -", o.Stream)
	}
	opts := []func(*awsconfig.LoadOptions) error{awsconfig.WithHTTPClient(awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = 5 * time.Second }).
		WithTransportOptions(func(t *http.Transport) { t.MaxIdleConnsPerHost = 64 }))}
	if o.Region != "" {
		opts = append(opts, awsconfig.WithRegion(o.Region))
	}
	conf, err := awsconfig.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("relay: kinesis: %w", err)
	}
	if conf.Region == "" {
		return nil, errors.New("relay: kinesis: no region: set region, or AWS_REGION")
	}
	return api.NewFromConfig(conf, func(c *api.Options) {
		c.RetryMaxAttempts = 1 // the relay tries again, by its own rules
		if o.Endpoint != "" {
			c.BaseEndpoint = aws.String(o.Endpoint)
		}
	}), nil
}

// code is the service's name for an error; empty: the service did not answer.
func code(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	return ""
}

// classOf says whose fault an error of the service's is ("Common errors" and the errors of each operation in the API
// reference of Kinesis Data Streams). invalid is the class of what it calls invalid.
func classOf(code string, invalid relay.Class) relay.Class {
	switch code {
	case "ProvisionedThroughputExceededException", "LimitExceededException", "KMSThrottlingException", "ThrottlingException", "Throttling", "RequestLimitExceeded":
		return relay.Throttled
	case "AccessDeniedException", "AccessDenied", "NotAuthorized", "ResourceNotFoundException", "KMSAccessDeniedException", "KMSDisabledException", "KMSInvalidStateException",
		"KMSNotFoundException", "KMSOptInRequired", "OptInRequired", "UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException",
		"SignatureDoesNotMatch", "ExpiredTokenException", "ExpiredToken", "IncompleteSignature", "MissingAuthenticationToken", "MissingAuthenticationTokenException":
		return relay.Denied
	case "InvalidArgumentException", "ValidationException", "SerializationException", "ValidationError":
		return invalid
	}
	return relay.Transient
}

// classed tells what went wrong with the stream, and the mend if there is one.
func classed(stream string, err error, invalid relay.Class) error {
	if err == nil {
		return nil
	}
	name := code(err)
	if name == "ResourceNotFoundException" {
		return relay.Errorf(relay.Denied, "relay: kinesis: stream %s is not there: make it, or correct stream, region or endpoint: %w", stream, err)
	}
	return relay.Errorf(classOf(name, invalid), "relay: kinesis: stream %s: %w", stream, err)
}
