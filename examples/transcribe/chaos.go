package transcribe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"
)

// Harm is what the script does to a worker.
type Harm string

const (
	Kill      Harm = "kill"      // SIGKILL, and started again
	Stop      Harm = "stop"      // SIGSTOP for two leases, then SIGCONT: a zombie
	Partition Harm = "partition" // cut off from the store for two leases, or from store and upstream
	Redeploy  Harm = "redeploy"  // SIGTERM, and started again when it has ended
)

// Report is what came of it.
type Report struct {
	Audit
	Lease   time.Duration
	Harms   map[Harm]int
	Crash   []time.Duration // from a kill, a stop or a partition until another worker had all the victim's connections open
	Term    []time.Duration // from SIGTERM until others had
	Refused int             // connections that the upstream refused, for their fence was too low
	Cut     int             // connections that it closed, for a higher fence came: zombies'
	Dropped int             // connections that it dropped at random
	Last    int64           // number of the last message of each stream
}

// Chaos does harms one after the other to random workers, and lets the upstream end and everything be stored after that. The
// error is what could not be done or waited for; whether the counts are right says Report.Faults.
func (f *Fleet) Chaos(ctx context.Context, harms []Harm) (Report, error) {
	r := Report{Lease: f.o.Lease, Harms: map[Harm]int{}}
	if err := f.waitOpen(ctx); err != nil {
		return r, err
	}
	for _, h := range harms {
		if err := f.harm(ctx, h, &r); err != nil {
			return r, fmt.Errorf("%s number %d: %w", h, r.Harms[h]+1, err)
		}
		r.Harms[h]++
		if err := f.waitOpen(ctx); err != nil {
			return r, err
		}
	}
	r.Last = f.Upstream.End()
	for {
		n, err := Stored(ctx, f.Sink, f.Streams)
		if err != nil {
			return r, err
		}
		if n >= r.Last {
			break
		}
		if !pause(ctx, 50*time.Millisecond) {
			break // what is missing is counted as lost
		}
	}
	for _, s := range f.Streams {
		for _, e := range f.Upstream.Events(s) {
			switch e.What {
			case "refused":
				r.Refused++
			case "superseded":
				r.Cut++
			case "dropped":
				r.Dropped++
			}
		}
	}
	var err error
	r.Audit, err = Check(context.WithoutCancel(ctx), f.Sink, f.Streams, r.Last, f.Upstream.Text)
	return r, err
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// waitOpen waits until every stream has an owner that is connected.
func (f *Fleet) waitOpen(ctx context.Context) error {
	for {
		rows, err := f.Store.Get(ctx, f.Streams)
		open := 0
		for _, r := range rows {
			if fence, ok := f.Upstream.Fence(r.ID); ok && fence == r.Fence {
				open++
			}
		}
		if err == nil && open == len(f.Streams) {
			return nil
		}
		if !pause(ctx, 20*time.Millisecond) {
			return errors.Join(fmt.Errorf("%d of %d streams are open", open, len(f.Streams)), err)
		}
	}
}

// victim is a random worker that holds something.
func (f *Fleet) victim(ctx context.Context) (*process, map[string]uint64, error) {
	for {
		p := f.workers[rand.IntN(len(f.workers))]
		held, err := p.held(ctx)
		if err == nil && len(held) > 0 {
			return p, held, nil
		}
		if !pause(ctx, 20*time.Millisecond) {
			return nil, nil, errors.Join(errors.New("no worker holds anything"), err)
		}
	}
}

func (f *Fleet) harm(ctx context.Context, h Harm, r *Report) error {
	pause(ctx, rand.N(f.o.Lease/2)) // any moment of a beat
	p, held, err := f.victim(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	switch h {
	case Kill:
		p.signal(syscall.SIGKILL)
		p.wait()
	case Stop:
		p.signal(syscall.SIGSTOP)
	case Partition:
		p.store.Freeze()
		if rand.IntN(2) == 0 {
			p.front.Freeze()
		}
	case Redeploy:
		p.signal(syscall.SIGTERM)
	}
	last, err := f.resumed(ctx, held)
	took := last.Sub(began)
	switch h {
	case Redeploy:
		r.Term = append(r.Term, took)
		p.wait()
	default:
		r.Crash = append(r.Crash, took)
	}
	switch h {
	case Kill, Redeploy:
		err = errors.Join(err, p.start())
	case Stop:
		pause(ctx, 2*f.o.Lease-time.Since(began))
		p.signal(syscall.SIGCONT)
	case Partition:
		pause(ctx, 2*f.o.Lease-time.Since(began))
		p.store.Thaw(rand.IntN(2) == 0)
		p.front.Thaw(rand.IntN(2) == 0)
	}
	return err
}

// Harms makes a list of n in random order; kills are most.
func Harms(kills, stops, partitions, redeploys int) []Harm {
	var list []Harm
	for h, n := range map[Harm]int{Kill: kills, Stop: stops, Partition: partitions, Redeploy: redeploys} {
		list = append(list, slices.Repeat([]Harm{h}, n)...)
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// Faults says what must not be.
func (r Report) Faults() error {
	var errs []error
	for what, n := range map[string]int64{
		"duplicates stored": r.Duplicates, "messages lost": r.Lost, "messages that the upstream did not send": r.Foreign, "messages accepted under two fences at once": r.TwoFences,
	} {
		if n != 0 {
			errs = append(errs, fmt.Errorf("%s: %d", what, n))
		}
	}
	return errors.Join(errs...)
}

// Print writes it for people.
func (r Report) Print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(what string, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t"+format+"\n", append([]any{what}, args...)...)
	}
	line("harm done", "%d kills, %d stops, %d partitions, %d redeploys", r.Harms[Kill], r.Harms[Stop], r.Harms[Partition], r.Harms[Redeploy])
	line("messages stored", "%d, under %d fences", r.Stored, r.Fences)
	line("duplicates stored", "%d", r.Duplicates)
	line("messages lost", "%d", r.Lost)
	line("messages the upstream did not send", "%d", r.Foreign)
	line("messages accepted under two fences at once", "%d", r.TwoFences)
	line("zombies that the upstream closed, refused", "%d, %d", r.Cut, r.Refused)
	line("connections that it dropped at random", "%d", r.Dropped)
	line(fmt.Sprintf("crash to resumed (lease %v)", r.Lease), "%s", times(r.Crash))
	line("SIGTERM to resumed", "%s", times(r.Term))
	_ = tw.Flush()
}

func times(ds []time.Duration) string {
	if len(ds) == 0 {
		return "none"
	}
	ds = slices.Sorted(slices.Values(ds))
	at := func(q float64) time.Duration { return ds[int(q*float64(len(ds)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("median %v, 90 %% %v, longest %v", at(.5), at(.9), at(1))
}
