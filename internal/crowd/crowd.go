package crowd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"time"
)

// Temper is how a visitor behaves.
type Temper int

// The tempers, in the order in which [Stats.ByTemper] lists them.
const (
	Patient Temper = iota
	Leaver
	Refresher
	Sleeper
	DoubleTab
	NoShow
	tempers
)

var temperNames = [tempers]string{"patient", "leaver", "refresher", "sleeper", "double tab", "no-show"}

func (t Temper) String() string {
	if t < 0 || t >= tempers {
		return fmt.Sprintf("temper %d", int(t))
	}
	return temperNames[t]
}

// Mix weighs the tempers against each other. Only proportions matter.
type Mix [tempers]float64

// DefaultMix is a crowd as a sale sees it: most wait, some do not.
func DefaultMix() Mix {
	return Mix{Patient: 60, Leaver: 10, Refresher: 12, Sleeper: 5, DoubleTab: 10, NoShow: 3}
}

// Options describes a crowd.
type Options struct {
	// Base is where visitors see the site, through the proxy: http://127.0.0.1:8080. Required.
	Base string
	// Room is the room's id. Required.
	Room string
	// Path is the page they came for; "/" if empty. It must lie in the room.
	Path string
	// Visitors is how many there are at once; 1 to 100,000. Required.
	Visitors int
	// Keep replaces whoever is done, so that the crowd stays as large until the
	// context ends. Without it Run returns when the last one is done.
	Keep bool
	// Ramp is the time over which they arrive; 5 s if zero, at once if negative.
	Ramp time.Duration
	// Speed divides every pause, patience and stay; 1 if zero. Polls are never
	// slower than the server asks.
	Speed float64
	// Stay is the mean time inside before the purchase, at speed 1; 4 s if zero.
	Stay time.Duration
	// Grace is how long the room waits for a silent visitor; if zero, three times
	// the presence interval that the server tells.
	Grace time.Duration
	// Mix is the share of each temper; [DefaultMix] if all are zero.
	Mix Mix
	// Seed makes the same choices again; timing still differs from run to run.
	Seed uint64
	// Conns bounds the connections; 256 if zero.
	Conns int
	// Observe is told what happens, in the visitor's own goroutine: it must be
	// quick and safe for concurrent use. Nobody is told if nil.
	Observe func(Event)
}

var roomShape = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Crowd is made by [New] and runs once.
type Crowd struct {
	opt    Options
	client *http.Client
	tally  tally
}

// New checks the options. The error names the field.
func New(opt Options) (*Crowd, error) {
	u, err := url.Parse(opt.Base)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return nil, fmt.Errorf("crowd: Base: %q is not an http or https address, such as http://127.0.0.1:8080", opt.Base)
	case !roomShape.MatchString(opt.Room):
		return nil, fmt.Errorf("crowd: Room: %q is not a room id ([a-z0-9-], at most 64)", opt.Room)
	case opt.Visitors < 1 || opt.Visitors > 100_000:
		return nil, fmt.Errorf("crowd: Visitors: %d is not between 1 and 100000", opt.Visitors)
	case opt.Speed < 0 || opt.Speed > 1000:
		return nil, fmt.Errorf("crowd: Speed: %g is not above 0 and at most 1000", opt.Speed)
	}
	opt.Base = u.Scheme + "://" + u.Host
	if opt.Path == "" {
		opt.Path = "/"
	}
	if opt.Path[0] != '/' {
		return nil, fmt.Errorf("crowd: Path: %q does not begin with a slash", opt.Path)
	}
	if opt.Speed == 0 {
		opt.Speed = 1
	}
	if opt.Ramp == 0 {
		opt.Ramp = 5 * time.Second
	}
	if opt.Stay <= 0 {
		opt.Stay = 4 * time.Second
	}
	if opt.Conns <= 0 {
		opt.Conns = 256
	}
	var sum float64
	for t, w := range opt.Mix {
		if w < 0 {
			return nil, fmt.Errorf("crowd: Mix: %v has the negative weight %g", Temper(t), w)
		}
		sum += w
	}
	if sum == 0 {
		opt.Mix = DefaultMix()
	}
	return &Crowd{opt: opt, client: newClient(opt.Conns)}, nil
}

// Stats tells how the crowd fares. Safe for concurrent use, while it runs and after.
func (c *Crowd) Stats() Stats { return c.tally.stats() }

// Run sends the crowd and returns when every visitor is done, or, with Keep or a
// context that ends, when all have stopped. The end of the context is no error.
func (c *Crowd) Run(ctx context.Context) (Stats, error) {
	defer c.client.CloseIdleConnections()
	if !c.tally.begin() {
		return Stats{}, errors.New("crowd: Run was called twice")
	}
	var wg sync.WaitGroup
	for slot := range c.opt.Visitors {
		wg.Go(func() { c.slot(ctx, slot) })
	}
	wg.Wait()
	return c.Stats(), nil
}

// slot is one place in the crowd: one visitor, or one after another.
func (c *Crowd) slot(ctx context.Context, slot int) {
	if c.opt.Ramp > 0 && !sleep(ctx, time.Duration(float64(c.opt.Ramp)*float64(slot)/float64(c.opt.Visitors))) {
		return
	}
	for n := 0; ctx.Err() == nil; n++ {
		r := rand.New(rand.NewPCG(c.opt.Seed, uint64(slot)<<32|uint64(n)))
		v := c.newVisitor(r, c.opt.Mix.pick(r))
		v.live(ctx)
		if !c.opt.Keep || !sleep(ctx, c.pause(r, 500*time.Millisecond)) {
			return
		}
	}
}

func (m Mix) pick(r *rand.Rand) Temper {
	var sum float64
	for _, w := range m {
		sum += w
	}
	x := r.Float64() * sum
	for t, w := range m {
		if x -= w; x < 0 {
			return Temper(t)
		}
	}
	return Patient
}

// pause gives a time around mean, between a third of it and three times it, at
// the crowd's speed.
func (c *Crowd) pause(r *rand.Rand, mean time.Duration) time.Duration {
	f := min(3, max(1./3, r.ExpFloat64()))
	return time.Duration(f * float64(mean) / c.opt.Speed)
}

// sleep waits and tells whether the context still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
