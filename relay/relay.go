package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ushergo/usher/lease"
)

// Options of New. ID, Source, Sink, Leases and Dead are required; the zero value of the rest is a good one.
type Options struct {
	// ID names the relay: [a-z0-9-]{1,64}. Cursors, fences and dead letters belong to it; two relays with one source
	// have nothing to do with each other.
	ID     string
	Source Source
	Sink   Sink
	// Handlers change or drop events on their way, in order.
	Handlers []Handler
	// Leases is a space of this relay's own. All processes that share it share the partitions out.
	Leases lease.Store
	// Lease are the terms of the leases; Worker and Serve are set by the relay. Cap is how many partitions one process
	// carries at most.
	Lease lease.Options
	// Dead keeps what the sink does not take.
	Dead DeadLetters
	// Bounds of the dead letters.
	Bounds DeadBounds
	// Retain is how long dead letters are kept; default 14 days.
	Retain time.Duration
	// From is where the relay begins that has never run: Oldest (default), Newest, or AtTime.
	From From
	// OnGap says what is done when a source no longer has what was not read: GapStop (default) or GapContinue.
	OnGap GapPolicy
	// Tuning bounds memory, flight and retries.
	Tuning Tuning
	// SendTimeout bounds one Send; default 30 s.
	SendTimeout time.Duration
	// Discover is how often the source's partitions are looked at; default 5 s.
	Discover time.Duration
	// Drain is how long a Send under way may go on when the partition is given up gracefully; default 1 s.
	Drain    time.Duration
	Logger   *slog.Logger // default: discards
	Observer Observer     // default: sees nothing

	sink Sink // with the handlers before it
}

// GapPolicy says what is done about a gap, after the gap event and the alarm.
type GapPolicy uint8

const (
	GapStop     GapPolicy = iota // the partition stops until Resume
	GapContinue                  // it goes on with what is there
)

// Observer sees what a relay does, for metrics. Its methods are called from many goroutines and must not block.
type Observer interface {
	// Taken is called for each event that the sink took, with the time since it happened.
	Taken(e *Event, after time.Duration)
	// Failed is called for each attempt that failed.
	Failed(e *Event, c Class)
	// Buried is called for each event that went to the dead letters.
	Buried(e *Event)
	// Gap is called when events were lost before they could be read.
	Gap(g *GapError)
	// Expired is called when dead letters were forgotten because of their age.
	Expired(n int)
}

type noObserver struct{}

func (noObserver) Taken(*Event, time.Duration) {}
func (noObserver) Failed(*Event, Class)        {}
func (noObserver) Buried(*Event)               {}
func (noObserver) Gap(*GapError)               {}
func (noObserver) Expired(int)                 {}

var relayName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

func (o Options) withDefaults() (Options, error) {
	switch {
	case !relayName.MatchString(o.ID):
		return o, fmt.Errorf("relay: id %q: use 1 to 64 of a-z 0-9 -", o.ID)
	case o.Source == nil || o.Sink == nil || o.Leases == nil || o.Dead == nil:
		return o, fmt.Errorf("relay %s: Source, Sink, Leases and Dead are needed", o.ID)
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Retain, 14*24*time.Hour)
	def(&o.SendTimeout, 30*time.Second)
	def(&o.Discover, 5*time.Second)
	def(&o.Drain, time.Second)
	o.Tuning = o.Tuning.withDefaults()
	o.Bounds = o.Bounds.WithDefaults()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	o.sink = Handled(o.Sink, o.Handlers...)
	return o, nil
}

// Relay carries the events of one source to one sink. Safe for concurrent use.
type Relay struct {
	o     Options
	state *state

	mu     sync.Mutex
	lanes  map[string]*lane
	worker *lease.Worker

	redriving sync.Mutex
	letters   lettersState
}

// New makes a relay; Run runs it. Source and sink stay the caller's to close, after Run.
func New(o Options) (*Relay, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Relay{o: o, state: &state{leases: o.Leases, from: o.From}, lanes: map[string]*lane{}}, nil
}

// ID of the relay.
func (r *Relay) ID() string { return r.o.ID }

// Run carries events until ctx ends, then gives up its partitions, and returns ctx's error or what hindered it. It is
// called once.
func (r *Relay) Run(ctx context.Context) error {
	opts := r.o.Lease
	opts.Serve = r.serve
	if opts.Logger == nil {
		opts.Logger = r.o.Logger
	}
	w, err := lease.New(r.o.Leases, opts)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.worker = w
	r.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { r.discovering(ctx) })
	wg.Go(func() { r.housekeeping(ctx) })
	<-ctx.Done()
	wg.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.Drain+hung+10*time.Second)
	defer cancel()
	return errors.Join(ctx.Err(), w.Close(last))
}

// serve carries one partition while it is this process's.
func (r *Relay) serve(ctx context.Context, res lease.Resource) error {
	if res.Cursor == cursorEnd {
		return nil
	}
	l := newLane(&r.o, res.ID, res)
	r.mu.Lock()
	r.lanes[res.ID] = l
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.lanes, res.ID)
		r.mu.Unlock()
	}()
	r.o.Logger.Debug("carrying a partition", "relay", r.o.ID, "partition", res.ID, "fence", res.Fence, "cursor", res.Cursor)
	return l.run(ctx)
}

// discovering keeps a row for each partition whose parents have been read, and has the source keep what is needed.
func (r *Relay) discovering(ctx context.Context) {
	failed := false
	for {
		err := r.discover(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failed:
			r.o.Logger.Error("the partitions cannot be listed or kept; trying again", "relay", r.o.ID, "err", err)
		case err == nil && failed:
			r.o.Logger.Info("the partitions are listed again", "relay", r.o.ID)
		}
		failed = err != nil
		if !pause(ctx, r.o.Discover) {
			return
		}
	}
}

func (r *Relay) discover(ctx context.Context) error {
	rows, err := r.state.rows(ctx)
	if err != nil {
		return err
	}
	m, err := r.state.marker(ctx) // behind the rows, as Pause writes it before them
	if err != nil {
		return err
	}
	if err := r.align(ctx, m, rows); err != nil {
		return err
	}
	list, err := r.o.Source.Partitions(ctx)
	if err != nil {
		return err
	}
	made := false
	for _, p := range runnable(list, rows) {
		if err := lease.CheckID(p.Name); err != nil || strings.HasPrefix(p.Name, "!") {
			return fmt.Errorf("partition %q has a name that cannot be kept", p.Name)
		}
		desired := lease.Started
		if m.Paused {
			desired = lease.Stopped
		}
		if _, err := r.o.Leases.Put(ctx, lease.Put{ID: p.Name, Desired: desired, Cursor: m.Start, IfAbsent: true}); err != nil {
			return err
		}
		made = true
	}
	if made {
		r.wake()
	}
	r.resumeGaps(m)
	return r.retain(ctx, rows)
}

// retain tells the source how far each partition has been carried.
func (r *Relay) retain(ctx context.Context, rows map[string]lease.Row) error {
	keeper, ok := r.o.Source.(Retainer)
	if !ok {
		return nil
	}
	var errs []error
	for name, row := range rows {
		if row.Cursor == cursorEnd {
			continue
		}
		if err := keeper.Retain(ctx, name, r.o.ID, readCursor(row.Cursor).After); err != nil {
			errs = append(errs, fmt.Errorf("partition %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// runnable are the partitions without a row all of whose parents have been read: a parent that has neither a row nor a
// place in the list was read before, or is too old to be read.
func runnable(list []Partition, rows map[string]lease.Row) []Partition {
	listed := map[string]bool{}
	for _, p := range list {
		listed[p.Name] = true
	}
	var out []Partition
	for _, p := range list {
		if _, have := rows[p.Name]; have {
			continue
		}
		waits := slices.ContainsFunc(p.Parents, func(parent string) bool {
			row, have := rows[parent]
			return have && row.Cursor != cursorEnd || !have && listed[parent]
		})
		if !waits {
			out = append(out, p)
		}
	}
	return out
}

func (r *Relay) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.worker != nil {
		r.worker.Wake()
	}
}

// resumeGaps goes on in lanes that stand at a gap somebody has answered for, here or on another node.
func (r *Relay) resumeGaps(m marker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, l := range r.lanes {
		l.mu.Lock()
		answered := l.m.held != nil && m.Resumed[name] == string(l.m.held.Position)
		l.mu.Unlock()
		if answered {
			select {
			case l.resumed <- struct{}{}:
			default:
			}
		}
	}
}

// state is what is kept of a relay beside its partitions' cursors: a row of its own, which nobody owns.
type state struct {
	leases lease.Store
	from   From
}

// markerID is that row's; no partition is named so.
const markerID = "+relay"

// marker is what it says.
type marker struct {
	Start   string            `json:"-"` // where partitions begin that have not been read
	Paused  bool              `json:"paused,omitempty"`
	Resumed map[string]string `json:"resumed,omitempty"` // partition → end of the gap that somebody answered for
}

func (s *state) marker(ctx context.Context) (marker, error) {
	row, err := s.leases.Put(ctx, lease.Put{ID: markerID, Desired: lease.Stopped, Cursor: s.from.cursor(), IfAbsent: true})
	if err != nil {
		return marker{}, err
	}
	m := marker{Start: row.Cursor}
	if len(row.Spec) > 0 {
		if err := json.Unmarshal(row.Spec, &m); err != nil {
			return m, fmt.Errorf("relay: the row %s is none of ours: %w", markerID, err)
		}
	}
	return m, nil
}

func (s *state) write(ctx context.Context, m marker) error {
	spec, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = s.leases.Put(ctx, lease.Put{ID: markerID, Desired: lease.Stopped, Spec: spec, Cursor: m.Start})
	return err
}

// rows are the partitions' rows.
func (s *state) rows(ctx context.Context) (map[string]lease.Row, error) {
	rows := map[string]lease.Row{}
	for after := ""; ; {
		page, next, err := s.leases.List(ctx, after, lease.MaxList)
		if err != nil {
			return nil, err
		}
		for _, row := range page {
			if row.ID != markerID {
				rows[row.ID] = row
			}
		}
		if after = next; next == "" {
			return rows, nil
		}
	}
}
