package transcribe

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/engine/dynamodb"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/keeper/sqlsink"
	"github.com/ushergo/usher/lease"
)

// WorkerOptions of Work.
type WorkerOptions struct {
	Name  string
	Store string        // see OpenStore
	Sink  string        // as sqlite:messages.db, see sqlsink.Open
	Lease time.Duration // default 20 s
	Via   string        // dial this address instead of the upstream's: the script's proxy
	Log   *slog.Logger
}

// Work holds connections until ctx ends, and gives them back.
func Work(ctx context.Context, o WorkerOptions) error {
	store, closeStore, err := OpenStore(ctx, o.Store)
	if err != nil {
		return err
	}
	defer closeStore()
	sink, err := sqlsink.Open(ctx, o.Sink, 0)
	if err != nil {
		return err
	}
	defer sink.Close()
	out := &egress.Dialer{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}} // the upstream is on this machine
	k, err := keeper.New(keeper.Options{
		Sink: sink, Logger: o.Log,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if o.Via != "" {
				addr = o.Via
			}
			return out.DialContext(ctx, network, addr)
		},
		Reconnect: 100 * time.Millisecond, MaxReconnect: 2 * time.Second, Ping: time.Second, Silence: 3 * time.Second,
	})
	if err != nil {
		return err
	}
	return k.Run(ctx, store, lease.Options{Worker: o.Name, Lease: o.Lease, Logger: o.Log})
}

// OpenStore reaches the store of leases:
//
//	redis:127.0.0.1:6379                  Redis
//	dynamodb:TABLE                        DynamoDB, by the SDK's default credentials and region
//	dynamodb:TABLE@http://127.0.0.1:4567  an emulator
func OpenStore(ctx context.Context, url string) (lease.Store, func(), error) {
	kind, rest, _ := strings.Cut(url, ":")
	switch kind {
	case "redis":
		client, err := redis.Connect(ctx, redis.Config{Addrs: []string{rest}})
		if err != nil {
			return nil, nil, err
		}
		store, err := redis.NewLeases(client, "transcribe")
		if err != nil {
			client.Close()
			return nil, nil, err
		}
		return store, client.Close, nil
	case "dynamodb":
		table, endpoint, _ := strings.Cut(rest, "@")
		client, err := dynamodb.Client(ctx, dynamodb.Settings{Endpoint: endpoint})
		if err != nil {
			return nil, nil, err
		}
		return dynamodb.NewLeases(client, table), func() {}, nil
	}
	return nil, nil, fmt.Errorf("store %q: begin it with redis: or with dynamodb: and a name", url)
}

// Spec is what the workers are asked for: message numbers are in "seq", and the upstream is told where to go on, and the
// fence.
func Spec(url string) keeper.Spec {
	return keeper.Spec{
		URL: url, Desired: lease.Started,
		Cursor: keeper.CursorRule{JSON: "seq"},
		Resume: keeper.Resume{Query: "from={cursor}&fence={fence}"},
	}
}
