// Package keep is the keeper: section of a node: the leases, the sink, the worker, its metrics and its page.
package keep

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/keeper/dynamosink"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/web/svc"
)

// Options of Open.
type Options struct {
	Config *config.Config // required; its keeper: section is on
	Redis  rueidis.Client // with engine.kind: redis
	// Registry gets the figures. Required.
	Registry prometheus.Registerer
	Logger   *slog.Logger // required
}

// Keep is a node's keeper.
type Keep struct {
	cfg    *config.Config
	log    *slog.Logger
	store  lease.Store
	keeper *keeper.Keeper
	worker string
	seen   *seen
	close  []func() error
}

// Open reaches the store of leases and the sink. Errors name the key of the file.
func Open(ctx context.Context, o Options) (*Keep, error) {
	k := &Keep{cfg: o.Config, log: o.Logger, seen: newSeen()}
	if err := k.open(ctx, o); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	o.Registry.MustRegister(k)
	return k, nil
}

func (k *Keep) open(ctx context.Context, o Options) (err error) {
	c := &k.cfg.Keeper
	if k.worker, err = workerName(c.Worker); err != nil {
		return err
	}
	if k.store, err = k.openStore(ctx, o.Redis); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	sink, err := k.openSink(ctx)
	if err != nil {
		return fmt.Errorf("keeper.sink: %w", err)
	}
	longest := int64(c.MaxMessage)
	if strings.HasPrefix(k.sinkURL(), "dynamodb:") {
		longest = min(longest, dynamosink.MaxMessage)
	}
	dialer := &egress.Dialer{Allow: k.cfg.Egress.Allow, Timeout: c.DialTimeout}
	k.keeper, err = keeper.New(keeper.Options{
		Sink: sink, Dial: dialer.DialContext, DialTimeout: c.DialTimeout, Dials: c.Dials, Ping: c.Ping, Silence: c.Silence,
		Reconnect: c.Reconnect, MaxReconnect: c.MaxReconnect, MaxMessage: longest, Pending: c.Pending, PendingBytes: int(c.PendingBytes),
		Lanes: c.Lanes, StoreTimeout: c.StoreTimeout, Drain: c.Drain, Logger: k.log,
	})
	return err
}

// workerName is the one of the file, or one that nobody else has: after a crash a new process need not wait for the lease
// of the one before.
func workerName(name string) (string, error) {
	if name != "" {
		return name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("this machine has no name: %w; set keeper.worker", err)
	}
	random := make([]byte, 3)
	rand.Read(random)
	return strings.Trim(regexp.MustCompile(`[^A-Za-z0-9_.:-]+`).ReplaceAllString(host, "-"), "-") + "-" + hex.EncodeToString(random), nil
}

// Name is this worker's.
func (k *Keep) Name() string { return k.worker }

// Where says where leases and messages are, for the log.
func (k *Keep) Where() (leases, messages string) {
	leases = k.cfg.Engine.Kind
	if k.cfg.Keeper.Store == "dynamodb" {
		leases = "dynamodb:" + k.cfg.Keeper.DynamoDB.Table
	}
	if kinds := k.cfg.Keeper.To.Kinds(); len(kinds) > 0 {
		return leases, "to " + kinds[0]
	}
	return leases, redacted(k.sinkURL())
}

func (k *Keep) sinkURL() string {
	if url := k.cfg.Keeper.Sink.Reveal(); url != "" {
		return url
	}
	return "sqlite:" + filepath.Join(k.cfg.Engine.Dir, "keeper.db")
}

// Run holds connections until ctx ends, and gives everything back within drain.
func (k *Keep) Run(ctx context.Context, drain time.Duration) error {
	c := &k.cfg.Keeper
	leases, messages := k.Where()
	k.log.Info("the keeper is up", "worker", k.worker, "space", c.Space, "cap", c.Cap, "leases", leases, "messages", messages)
	err := k.keeper.Run(ctx, k.store, lease.Options{
		Worker: k.worker, Lease: c.Lease, Beat: c.Beat, Desired: c.Desired, Sweep: c.Sweep, Flush: c.Flush, Cap: c.Cap,
		Drain: max(drain, 100*time.Millisecond), Logger: k.log, Observer: k.seen,
	})
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	k.log.Info("the keeper has let go of everything", "worker", k.worker)
	return nil
}

// Close closes what Open opened, after Run has returned. It does not wait for a sink that hangs.
func (k *Keep) Close() error {
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, f := range k.close {
			errs = append(errs, f())
		}
		done <- errors.Join(errs...)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(3 * time.Second):
		return errors.New("keeper: the sink or the store of leases does not let itself be closed; it is left")
	}
}

// Health is nil while the store of leases takes commands.
func (k *Keep) Health() error { return k.store.Health() }

// Advice is how many workers there should be.
func (k *Keep) Advice() keeper.Advice { return k.keeper.Advice() }

// Connections is the API's part.
func (k *Keep) Connections() *svc.Connections {
	return &svc.Connections{Store: k.store, Live: k.keeper.Status, Wake: k.keeper.Wake, Advice: k.keeper.Advice}
}
