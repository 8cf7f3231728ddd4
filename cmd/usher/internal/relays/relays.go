package relays

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/roomlog"
	"github.com/ushergo/usher/relay/sqs"
	"github.com/ushergo/usher/room"
)

// Options of Open.
type Options struct {
	Relays []config.Relay
	Egress []netip.Prefix
	Logger *slog.Logger
	Stdout io.Writer

	// Log is the engine that rooms' logs are read from; Rooms, which may be nil, says at once what is new there.
	Log   roomlog.Log
	Rooms *room.Rooms

	// Source is read instead of what a relay's section names; it is closed with the relays. Default: what it names.
	Source relay.Source

	// Leases opens a space of leases that is shared by all who run that relay. Closed after the relay.
	Leases func(ctx context.Context, space string) (lease.Store, io.Closer, error)
	// Dead is the engine's store of dead letters; it stays its owner's to close.
	Dead relay.DeadLetters
	// Lease are the terms of the leases.
	Lease lease.Options
}

// Relays are the relays of one process. Safe for concurrent use.
type Relays struct {
	log     *slog.Logger
	metrics *metrics
	list    []*running
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// running is one relay with what is closed after it, in that order.
type running struct {
	*relay.Relay
	conf   *config.Relay
	source relay.Source
	close  []io.Closer
}

// Open makes the relays; Run runs them. ctx bounds the opening alone.
func Open(ctx context.Context, o Options) (*Relays, error) {
	rs := &Relays{log: o.Logger, metrics: newMetrics()}
	for i := range o.Relays {
		r, err := rs.open(ctx, &o, &o.Relays[i])
		if err != nil {
			_ = rs.Close()
			return nil, err
		}
		rs.list = append(rs.list, r)
	}
	rs.metrics.relays = rs.list
	return rs, nil
}

func (rs *Relays) open(ctx context.Context, o *Options, conf *config.Relay) (r *running, err error) {
	r = &running{conf: conf}
	defer func() {
		if err != nil {
			_ = r.shut()
			r, err = nil, fmt.Errorf("relay %s: %w", conf.ID, err)
		}
	}()
	m := &means{egress: o.Egress, stdout: o.Stdout}
	if o.Log != nil {
		m.rooms = func(ids []string) (relay.Source, error) { return roomSource(o, ids), nil }
	}
	if r.source = o.Source; r.source == nil {
		if r.source, err = m.openSource(ctx, conf); err != nil {
			return r, err
		}
	}
	r.close = append(r.close, r.source)
	sink, err := m.openSink(ctx, conf)
	if err != nil {
		return r, err
	}
	r.close = append(r.close, sink)
	leases, closer, err := o.Leases(ctx, "relay."+conf.ID)
	if err != nil {
		return r, err
	}
	if closer != nil {
		r.close = append(r.close, closer)
	}
	dead := o.Dead
	if q := conf.DeadLetters.SQS; q.Queue != "" {
		if dead, err = sqs.OpenDeadLetters(ctx, sqsQueue(q)); err != nil {
			return r, err
		}
	}
	opts := Tuned(conf)
	opts.Source, opts.Sink, opts.Leases, opts.Dead = r.source, sink, leases, dead
	opts.Lease, opts.Logger, opts.Observer = o.Lease, o.Logger, rs.metrics.of(conf.ID)
	r.Relay, err = relay.New(opts)
	return r, err
}

// Tuned are a relay's options as far as its section says them.
func Tuned(conf *config.Relay) relay.Options {
	opts := relay.Options{
		ID:     conf.ID,
		Bounds: relay.DeadBounds{Letters: conf.DeadLetters.Max, Bytes: int64(conf.DeadLetters.MaxBytes)},
		Retain: conf.DeadLetters.Retain,
		Tuning: relay.Tuning{
			Batch: conf.Batch, InFlight: conf.InFlight, Attempts: conf.Retry.Attempts, GiveUp: conf.Retry.For, MaxBackoff: conf.Retry.MaxPause,
		},
		SendTimeout: conf.Timeout,
	}
	if conf.OnGap == "continue" {
		opts.OnGap = relay.GapContinue
	}
	if len(conf.Events) > 0 {
		opts.Handlers = []relay.Handler{relay.Only(conf.Events...)}
	}
	at, newest, err := conf.Begin()
	if err == nil { // else the file was refused
		opts.From = relay.From{At: at, Newest: newest}
	}
	return opts
}

func roomSource(o *Options, ids []string) relay.Source {
	opts := roomlog.Options{Rooms: ids}
	for _, id := range ids {
		if id == "*" {
			opts.Rooms = nil
		}
	}
	if o.Rooms != nil {
		opts.Listen = func(id string, f func([]room.Event)) (func(), bool) {
			r, ok := o.Rooms.Lookup(id)
			if !ok {
				return nil, false
			}
			return r.Listen(f), true
		}
	}
	return roomlog.New(o.Log, opts)
}

// Run starts them. Close ends them.
func (rs *Relays) Run() {
	ctx, stop := context.WithCancel(context.Background())
	rs.stop = stop
	for _, r := range rs.list {
		rs.wg.Go(func() {
			if err := r.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				rs.log.Error("the relay did not end in order; another process takes over when its lease is over", "relay", r.ID(), "err", err)
			}
		})
	}
}

// Get returns a relay by its id.
func (rs *Relays) Get(id string) (*relay.Relay, bool) {
	for _, r := range rs.list {
		if r.ID() == id {
			return r.Relay, true
		}
	}
	return nil, false
}

// List returns them in the order of the file.
func (rs *Relays) List() []*relay.Relay {
	list := make([]*relay.Relay, len(rs.list))
	for i, r := range rs.list {
		list[i] = r.Relay
	}
	return list
}

// Close gives up all partitions, so that others may take them at once, and closes sources and sinks.
func (rs *Relays) Close() error {
	if rs.stop != nil {
		rs.stop()
	}
	rs.wg.Wait()
	var errs []error
	for _, r := range rs.list {
		errs = append(errs, r.shut())
	}
	rs.list = nil
	return errors.Join(errs...)
}

func (r *running) shut() error {
	var errs []error
	for _, c := range r.close {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// statusWait bounds what metrics ask of stores.
const statusWait = 2 * time.Second
