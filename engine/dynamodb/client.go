package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/ushergo/usher/lease"
)

// Settings of Client.
type Settings struct {
	Region   string // default: the SDK's, from AWS_REGION or the shared config
	Endpoint string // default: the region's; as http://127.0.0.1:4567 for an emulator
}

// Client makes a client with the SDK's default credential chain: environment, shared config, web identity, container,
// instance. Its connections are kept, enough of them for the work that is done side by side.
func Client(ctx context.Context, s Settings) (*dynamodb.Client, error) {
	opts := []func(*config.LoadOptions) error{config.WithHTTPClient(awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = 3 * time.Second }).
		WithTransportOptions(func(t *http.Transport) { t.MaxIdleConnsPerHost = 64 }))}
	if s.Region != "" {
		opts = append(opts, config.WithRegion(s.Region))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("dynamodb: %w", err)
	}
	if cfg.Region == "" {
		return nil, errors.New("dynamodb: no region: set region, or AWS_REGION")
	}
	return dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) {
		if s.Endpoint != "" {
			o.BaseEndpoint = aws.String(s.Endpoint)
		}
	}), nil
}

// readError is of a request that changes nothing.
func (s *Leases) readError(err error) error {
	if werr := s.writeError(err); errors.Is(werr, lease.ErrUnknown) {
		return fmt.Errorf("%w: dynamodb: table %s: %w", lease.ErrUnavailable, s.table, err)
	} else {
		return werr
	}
}

// writeError tells what was certainly not done from what may have been: after a retry of the SDK's even a throttled request
// may have been done at its first attempt.
func (s *Leases) writeError(err error) error {
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		return fmt.Errorf("%w: dynamodb: table %s, or %s, does not exist: make them with usher dynamodb create --table %s, or set table", lease.ErrUnavailable, s.table, s.workers, s.table)
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode() {
		case "ValidationException":
			return fmt.Errorf("%w: dynamodb: table %s: %w; a table of another make? use one that usher dynamodb create made", lease.ErrForeign, s.table, err)
		case "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException":
			return fmt.Errorf("%w: dynamodb: table %s: %w; see that the credentials may Get, BatchGet, Put, Update, Delete, Query and Scan it and its index", lease.ErrUnavailable, s.table, err)
		}
	}
	return fmt.Errorf("%w: dynamodb: table %s: %w", lease.ErrUnknown, s.table, err)
}

// refused reports whether a condition did not hold.
func refused(err error) bool {
	var c *types.ConditionalCheckFailedException
	return errors.As(err, &c)
}
