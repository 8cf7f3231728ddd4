package keeper

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/ushergo/usher/lease"
)

// Keeper holds connections. Safe for concurrent use.
type Keeper struct {
	o     Options
	stats *stats
	lanes []*lane
	dials chan struct{}

	mu     sync.Mutex
	conns  map[string]*conn
	worker *lease.Worker
	advice Advice
}

// New makes a Keeper. Errors are those of Options.Validate.
func New(o Options) (*Keeper, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	k := &Keeper{o: o.withDefaults(), stats: &stats{}, conns: map[string]*conn{}}
	k.dials = make(chan struct{}, k.o.Dials)
	for range k.o.Lanes {
		k.lanes = append(k.lanes, newLane(&k.o, k.stats))
	}
	return k, nil
}

// Run holds the connections that store asks for, as one of its workers, until ctx ends. Then every socket is closed and
// every row given back; o.Drain bounds that. A sink that hangs is left behind. It is called once.
func (k *Keeper) Run(ctx context.Context, store lease.Store, o lease.Options) error {
	own, stop := context.WithCancel(context.Background())
	defer stop()
	for _, l := range k.lanes {
		go l.run(own)
	}
	o.Serve, o.Info = k.Hold, k.info
	w, err := lease.New(store, o)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.worker = w
	k.mu.Unlock()
	go k.sampling(own)
	go k.advising(own, store)
	<-ctx.Done()
	drain := o.Drain
	if drain == 0 {
		drain = 25 * time.Second
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return w.Close(last)
}

// Told is what a worker tells the others with each beat, for live views.
type Told struct {
	Open      int     `json:"open"`
	Blocked   int     `json:"blocked"`
	Pending   int     `json:"pending"`
	LagMS     int64   `json:"lag_ms"`
	PerSecond float64 `json:"messages_per_second"`
}

const toldFormat = "open=%d,blocked=%d,pending=%d,lag_ms=%d,per_second=%f"

func (k *Keeper) info() string {
	s := k.Stats()
	return fmt.Sprintf("open=%d,blocked=%d,pending=%d,lag_ms=%d,per_second=%.2f", s.Open, s.Blocked, s.Pending, s.Lag.Milliseconds(), s.PerSecond)
}

// ReadTold reads lease.WorkerRow.Info; false: it is not a keeper's.
func ReadTold(info string) (t Told, ok bool) {
	_, err := fmt.Sscanf(info, toldFormat, &t.Open, &t.Blocked, &t.Pending, &t.LagMS, &t.PerSecond)
	return t, err == nil
}

// Worker is the lease's worker; nil before Run has begun.
func (k *Keeper) Worker() *lease.Worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.worker
}

// Wake makes the worker look at what is desired now, after a change that it was not told of.
func (k *Keeper) Wake() {
	if w := k.Worker(); w != nil {
		w.Wake()
	}
}

// Advice is how many workers there should be, as of the last look, a few seconds ago.
func (k *Keeper) Advice() Advice {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.advice
}

const adviceEvery = 10 * time.Second

// advising looks at the workers' rows now and then. The first look waits until this worker's own is there.
func (k *Keeper) advising(ctx context.Context, store lease.Store) {
	var a advisor
	began := time.Now()
	for wait := time.Second; sleep(ctx, wait); wait = adviceEvery {
		rows, err := store.Workers(ctx)
		if err != nil {
			continue
		}
		st := k.Worker().Stats()
		living, held := 0, 0
		for _, r := range rows {
			if !r.Dead && !r.Leaving {
				living++
			}
			if !r.Dead {
				held += r.Held
			}
		}
		advice := a.advise(time.Since(began), living, held+st.Orphans, st.Cap)
		k.mu.Lock()
		k.advice = advice
		k.mu.Unlock()
	}
}

func (k *Keeper) dialing() *dialing {
	return &dialing{netDial: k.o.Dial, tls: k.o.TLS, timeout: k.o.DialTimeout, silence: k.o.Silence, maxBytes: k.o.MaxMessage}
}

func (k *Keeper) laneOf(id string) *lane {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return k.lanes[h.Sum32()%uint32(len(k.lanes))]
}

// enter puts a connection on the list; the function it returns takes it off.
func (k *Keeper) enter(c *conn) func() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conns[c.res.ID] = c
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.conns[c.res.ID] == c {
			delete(k.conns, c.res.ID)
		}
	}
}
