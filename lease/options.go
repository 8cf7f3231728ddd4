package lease

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Options of New and Run. The zero value is a good one. All workers of a space have the same Lease and Beat.
type Options struct {
	// Worker is this worker's name; default: one that nobody else has. A name that stays the same over restarts has to
	// wait for its own predecessor's lease after a crash.
	Worker string
	// Lease is how long a beat is good for; default 20 s, at least 100 ms. Shorter finds crashes sooner, and takes from
	// workers that a slow store or a stopped process keeps from beating for as long.
	Lease time.Duration
	// Beat is how often the worker writes its row; default a quarter of Lease.
	Beat time.Duration
	// Margin is by how much the worker stops before others may begin; default a tenth of Lease. It is what their clocks
	// may differ in over one lease, plus the time a function needs to notice.
	Margin time.Duration
	// Observe is how often the others' rows are read; default a twentieth of Lease, which is 1 s.
	Observe time.Duration
	// Desired is how often desired state is read, in batches; default half of Lease, which is 10 s.
	Desired time.Duration
	// Sweep is how often orphans are looked for without a cause; default three times Lease, which is 60 s. It is a net:
	// deaths, departures and releases are seen within Observe or Desired.
	Sweep time.Duration
	// Flush is how often changed cursors are written, all together; default 1 s. It is what is done again after a crash.
	Flush time.Duration
	// Cap is how many resources this worker holds at most; default 700. Beyond it resources stay unowned.
	Cap int
	// Parallel is how many rows are taken or released side by side; default 32.
	Parallel int
	// Moves is how many resources a worker with more than its share gives away in one beat; default 32.
	Moves int
	// Drain is how long Run waits for functions to return after its context ended; default 25 s, which is less than
	// Kubernetes' grace.
	Drain time.Duration
	// Retry is the pause after a function's error, doubled with each to MaxRetry, with full jitter; defaults 1 s, 1 min.
	Retry, MaxRetry time.Duration

	// Serve is run for each resource that this worker owns; Run sets it. Nil: only what Acquire asks for is owned.
	Serve Serve

	// Info is asked before each beat and told to the others with it, in WorkerRow.Info: what people want to know of a
	// worker, up to 256 of A-Z a-z 0-9 _ = . , : - as "open=12,lag_ms=0". It costs no write. Default: nothing is told.
	Info func() string

	Logger   *slog.Logger // default: discards
	Observer Observer     // default: sees nothing

	// elapsed is this worker's monotonic clock, since any beginning. For tests.
	elapsed func() time.Duration
}

// Serve does the work on one resource. Its ctx ends when the resource is not this worker's any more, with a cause: ErrLost,
// ErrStopped, ErrDeleted, ErrMoved, ErrChanged or ErrLeaving. It then returns as soon as it can; the resource is given back
// after that, but for ErrLost, when others may have it already. An error makes it run again after a pause, still under the
// same fence; nil means that the resource is finished: its desired state becomes stopped.
type Serve func(ctx context.Context, r Resource) error

// Defaults of Options.
const (
	DefaultLease = 20 * time.Second
	DefaultCap   = 700
)

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Lease, DefaultLease)
	def(&o.Beat, o.Lease/4)
	def(&o.Margin, o.Lease/10)
	def(&o.Observe, o.Lease/20)
	def(&o.Desired, o.Lease/2)
	def(&o.Sweep, 3*o.Lease)
	def(&o.Flush, time.Second)
	def(&o.Drain, 25*time.Second)
	def(&o.Retry, time.Second)
	def(&o.MaxRetry, time.Minute)
	if o.Cap == 0 {
		o.Cap = DefaultCap
	}
	if o.Parallel == 0 {
		o.Parallel = 32
	}
	if o.Moves == 0 {
		o.Moves = 32
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.elapsed == nil {
		start := time.Now()
		o.elapsed = func() time.Duration { return time.Since(start) }
	}
	return o
}

// Validate names the field that is out of bounds and its mend, wrapping ErrBadRequest.
func (o Options) Validate() error {
	o = o.withDefaults()
	if o.Lease < 100*time.Millisecond || o.Lease > time.Hour {
		return bad("lease %v: 100ms to 1h", o.Lease)
	}
	if o.Margin < 0 || o.Beat <= 0 || 2*o.Beat > o.Lease-o.Margin {
		return bad("beat %v: more than 0, and two of them within lease − margin (%v), so that one may fail", o.Beat, o.Lease-o.Margin)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"observe", o.Observe}, {"desired", o.Desired}, {"sweep", o.Sweep}, {"flush", o.Flush}, {"drain", o.Drain}, {"retry", o.Retry}, {"max retry", o.MaxRetry}} {
		if f.d < time.Millisecond {
			return bad("%s %v: at least 1ms", f.name, f.d)
		}
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"cap", o.Cap}, {"parallel", o.Parallel}, {"moves", o.Moves}} {
		if f.n < 1 || f.n > 1_000_000 {
			return bad("%s %d: 1 to 1000000", f.name, f.n)
		}
	}
	if o.Worker != "" {
		if err := checkWorker(o.Worker); err != nil {
			return fmt.Errorf("%w, or leave it empty", err)
		}
	}
	return nil
}

// Observer sees what a worker does, for metrics. Its methods are called from many goroutines and must not block.
type Observer interface {
	// Beaten is called after each beat; err is nil when it counts.
	Beaten(took time.Duration, err error)
	// Taken is called when a resource became this worker's; from is nobody, or a dead owner.
	Taken(id string, from Owner)
	// Ended is called when a resource is not this worker's any more.
	Ended(id string, cause error)
	// Died is called when this worker has marked another dead; where two find it at once, both are told.
	Died(o Owner)
}

type noObserver struct{}

func (noObserver) Beaten(time.Duration, error) {}
func (noObserver) Taken(string, Owner)         {}
func (noObserver) Ended(string, error)         {}
func (noObserver) Died(Owner)                  {}
