package keeper

import (
	"context"
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

	mu    sync.Mutex
	conns map[string]*conn
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
// every row given back; o.Drain bounds that. A sink that hangs is left behind.
func (k *Keeper) Run(ctx context.Context, store lease.Store, o lease.Options) error {
	if o.Drain == 0 {
		o.Drain = 25 * time.Second
	}
	stop := k.Start()
	defer stop()
	return lease.Run(ctx, store, k.Hold, o)
}

// Start begins what Hold needs, for those who have a lease.Worker of their own; Run calls it. stop ends it, after the last
// Hold has returned.
func (k *Keeper) Start() (stop func()) {
	ctx, stop := context.WithCancel(context.Background())
	for _, l := range k.lanes {
		go l.run(ctx)
	}
	go k.sampling(ctx)
	return stop
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
