package push

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Options of New. The zero value works.
type Options struct {
	Shards        int // goroutines that own connections; default GOMAXPROCS
	MaxConns      int // default 20,000; beyond it ErrFull
	MaxPerTicket  int // tabs of one visitor; default 8
	MaxPerAddress int // default 2,000; danger: a mobile carrier's gateway is one address
	// AcceptPerSecond and AcceptBurst bound how fast connections are taken on. Default 1,500 and 500.
	AcceptPerSecond, AcceptBurst int
	// StatsEvery is how often stats are told while they change, and looked at. Default 1s.
	StatsEvery time.Duration
	// RankEvery is how often a changed place is told while there is CPU to spare. Default 2s.
	RankEvery time.Duration
	// CPUShare is the part of the machine that frames may take before places are told by how near they are to the
	// front. Default 0.2.
	CPUShare float64
	// SlowWithin is how long a peer may take for what it did not take at once. Default 10s.
	SlowWithin time.Duration
	// MaxSlow bounds the peers that are waited for at once; the next one is closed. Default 4,096.
	MaxSlow int
	// SilentAfter is how long a peer that answers pings may be silent. Default 60s.
	SilentAfter time.Duration
	// UserTimeout is how long the kernel keeps what a peer does not acknowledge. Default 25s; Linux.
	UserTimeout time.Duration
	// SendBuffer is a socket's send buffer in bytes: what a stopped peer costs the kernel. Default 8 KiB.
	SendBuffer int
	// Recall is how many changes of tickets a room remembers for those who come back. Default 16,384.
	Recall int
	Logger *slog.Logger // default: discards

	// In tests: what frames cost, and on how many processors.
	meter func(*Hub) (spent, frames int64)
	procs int
}

func (o *Options) defaults() {
	def := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	dur := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	def(&o.Shards, runtime.GOMAXPROCS(0))
	def(&o.MaxConns, 20_000)
	def(&o.MaxPerTicket, 8)
	def(&o.MaxPerAddress, 2_000)
	def(&o.AcceptPerSecond, 1_500)
	def(&o.AcceptBurst, 500)
	dur(&o.StatsEvery, time.Second)
	dur(&o.RankEvery, 2*time.Second)
	dur(&o.SlowWithin, 10*time.Second)
	def(&o.MaxSlow, 4_096)
	dur(&o.SilentAfter, 60*time.Second)
	dur(&o.UserTimeout, 25*time.Second)
	def(&o.SendBuffer, 8<<10)
	def(&o.Recall, 16_384)
	def(&o.procs, runtime.GOMAXPROCS(0))
	if o.meter == nil {
		o.meter = (*Hub).meter
	}
	if o.CPUShare <= 0 {
		o.CPUShare = 0.2
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Errors of Accept and Attach.
var (
	ErrFull     = errors.New("push: as many connections as this node takes")
	ErrTicket   = errors.New("push: as many connections as one ticket may have")
	ErrAddress  = errors.New("push: as many connections as one address may have")
	ErrBusy     = errors.New("push: more connections a second than this node takes on")
	ErrDraining = errors.New("push: this node is being stopped")
	ErrClosed   = errors.New("push: closed")
)

// Hub holds the connections of one node. Safe for concurrent use.
type Hub struct {
	opts   Options
	start  time.Time
	seed   maphash.Seed
	shards []*shard
	door   door
	looks  chan look
	done   chan struct{}
	ctx    context.Context // ends with done
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once

	mu    sync.Mutex
	rooms map[string]*Room

	conns    atomic.Int64
	slow     atomic.Int64
	draining atomic.Bool
	pace     atomic.Pointer[pace]
	wake     chan struct{} // look at stats now
	counts   counts
}

// counts are for metrics.
type counts struct {
	frames, bytes, slow, looks, resets atomic.Int64
	closed, transports                 sync.Map // Code, name of a codec → *atomic.Int64
}

// add counts under a key of one of the maps.
func add(m *sync.Map, key any, n int64) {
	v, ok := m.Load(key)
	if !ok {
		v, _ = m.LoadOrStore(key, new(atomic.Int64))
	}
	v.(*atomic.Int64).Add(n)
}

// Figures is what a hub has done, for metrics.
type Figures struct {
	Conns, Slow          int64            // now
	Transports           map[string]int64 // now, by the name of the codec
	Frames, Bytes        int64            // writes, each of which may hold several messages
	Slowed, Looks, Reset int64
	Closed               map[Code]int64
	FrameCost            time.Duration // of the shard's time, recently
	Level                int           // 0: at ease; 1: stats ride with places; 2: by place
}

// New starts a hub. Close it when done.
func New(opts Options) *Hub {
	opts.defaults()
	h := &Hub{
		opts: opts, start: time.Now(), seed: maphash.MakeSeed(), rooms: map[string]*Room{},
		looks: make(chan look, 1024), done: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.door.init(&h.opts)
	h.pace.Store(&pace{cost: 10e3, stretch: 1})
	for range opts.Shards {
		s := newShard(h)
		h.shards = append(h.shards, s)
		h.wg.Go(s.run)
	}
	for range 16 {
		h.wg.Go(h.looker)
	}
	h.wg.Go(h.tick)
	return h
}

// Close cuts every connection. Drain first.
func (h *Hub) Close() {
	h.once.Do(func() { close(h.done); h.cancel() })
	h.wg.Wait()
}

// Conns is how many connections are open.
func (h *Hub) Conns() int { return int(h.conns.Load()) }

// Figures returns the counts.
func (h *Hub) Figures() Figures {
	p := h.pace.Load()
	f := Figures{
		Conns: h.conns.Load(), Slow: h.slow.Load(), Frames: h.counts.frames.Load(), Bytes: h.counts.bytes.Load(), Slowed: h.counts.slow.Load(),
		Looks: h.counts.looks.Load(), Reset: h.counts.resets.Load(), Closed: map[Code]int64{}, Transports: map[string]int64{}, FrameCost: time.Duration(p.cost), Level: p.level,
	}
	h.counts.transports.Range(func(k, v any) bool {
		f.Transports[k.(string)] = v.(*atomic.Int64).Load()
		return true
	})
	h.counts.closed.Range(func(k, v any) bool {
		f.Closed[k.(Code)] = v.(*atomic.Int64).Load()
		return true
	})
	return f
}

// Window is the time over which clients spread their return after a close that nobody announced.
func (h *Hub) Window() time.Duration {
	return min(max(time.Duration(h.conns.Load())*time.Second/2000, 2*time.Second), 2*time.Minute)
}

// Draining says whether Drain has begun.
func (h *Hub) Draining() bool { return h.draining.Load() }

// now is the hub's own clock, in ns.
func (h *Hub) now() int64 { return int64(time.Since(h.start)) }

func (h *Hub) shardOf(id ID) *shard {
	return h.shards[maphash.Comparable(h.seed, id)%uint64(len(h.shards))]
}

// look is a question to a source.
type look struct {
	c    *Conn
	gen  uint32
	room *Room
}

// looker asks sources, so that shards do not wait for stores.
func (h *Hub) looker() {
	for {
		select {
		case <-h.done:
			return
		case l := <-h.looks:
			h.counts.looks.Add(1)
			head := l.room.Head()
			ctx, cancel := context.WithTimeout(h.ctx, 5*time.Second)
			st, err := l.room.source.Look(ctx, l.c.ticket)
			cancel()
			select {
			case l.c.shard.results <- result{l.c, l.gen, head, st, err}:
			case <-h.done:
				return
			}
		}
	}
}

// tick looks at stats and at the load.
func (h *Hub) tick() {
	every := time.NewTicker(h.opts.StatsEvery)
	defer every.Stop()
	for {
		select {
		case <-h.done:
			return
		case <-h.wake:
		case <-every.C:
			h.repace()
		}
		h.mu.Lock()
		rooms := make([]*Room, 0, len(h.rooms))
		for _, r := range h.rooms {
			rooms = append(rooms, r)
		}
		h.mu.Unlock()
		for _, r := range rooms {
			r.refresh()
		}
	}
}
