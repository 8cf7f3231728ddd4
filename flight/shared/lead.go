package shared

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/flight"
)

// lead loads under a lease and publishes. It returns when the load has really ended, and the lease is renewed until then,
// even if ctx has ended and the load does not care: nobody else may begin one before. again: the load was cancelled because
// the lead was lost, and those who wait here should have what its successor brings.
func (g *Group[V]) lead(ctx context.Context, key string, w flight.With, st State, asked time.Time, load flight.Load[V]) (res got[V], again bool, err error) {
	g.led.Add(1)
	loadCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()

	ended, renewed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(renewed)
		g.renew(key, st.Fence, asked.Add(st.Left), cancel, ended)
	}()

	// What this process remembers of the key, and a load of it that may still run from before, are of another lead.
	g.origin.Forget(key)
	// The context cannot be cancelled, so the load runs here and this returns at its real end.
	r, alone, err := g.load(context.WithoutCancel(ctx), key, w, func(ctx context.Context) (V, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(loadCtx, func() { cancel(context.Cause(loadCtx)) })
		defer stop()
		return load(ctx)
	})
	close(ended)
	<-renewed
	lost := loadCtx.Err() != nil && context.Cause(loadCtx) == ErrLeaseLost
	res, err = g.publish(key, st, r, alone, err, loadCtx.Err() != nil, lost)
	return res, lost && err != nil && alone == nil && ctx.Err() == nil, err
}

// load asks origin, and also tells whether the load that ran said that its value is not shareable.
func (g *Group[V]) load(ctx context.Context, key string, w flight.With, load flight.Load[V]) (flight.Result[V], *flight.NotShareableError, error) {
	w.Args = ""
	var said atomic.Pointer[flight.NotShareableError] // by a load that may outlive this call
	r, err := g.origin.DoWith(ctx, key, w, func(ctx context.Context) (V, error) {
		v, err := load(ctx)
		var n *flight.NotShareableError
		if errors.As(err, &n) {
			said.Store(n)
		}
		return v, err
	})
	if err != nil || !r.Led {
		return r, nil, err
	}
	return r, said.Load(), nil
}

// renew keeps the lease until the load has ended, three times within each lease. When it cannot be sure any more that
// the lease holds, a tenth of it before its end, it cancels the load. It goes on renewing while nobody has taken over:
// a load that does not heed its context must not get a second one beside it.
func (g *Group[V]) renew(key string, fence uint64, until time.Time, cancel context.CancelCauseFunc, ended <-chan struct{}) {
	lease := g.opts.Lease
	unsure := time.NewTimer(time.Until(until) - lease/10)
	defer unsure.Stop()
	next := time.NewTicker(lease / 3)
	defer next.Stop()
	sure := true
	giveUp := func() {
		if sure {
			sure = false
			g.lost.Add(1)
			cancel(ErrLeaseLost)
		}
	}
	for {
		select {
		case <-ended:
			return
		case <-unsure.C:
			giveUp()
		case <-next.C:
			start := time.Now()
			ctx, done := context.WithTimeout(context.Background(), lease/3)
			r, err := g.store.Renew(ctx, Renew{Space: g.space, Key: key, Fence: fence, Lease: lease})
			done()
			switch {
			case err != nil: // the next may succeed
			case r.Held && sure:
				unsure.Reset(time.Until(start.Add(lease)) - lease/10)
			case !r.Held:
				giveUp()
				<-ended
				return
			}
		}
	}
}

// publish tells the others what came of a lead. That the store does not answer changes nothing for who waits here.
func (g *Group[V]) publish(key string, st State, r flight.Result[V], alone *flight.NotShareableError, err error, cancelled, lost bool) (got[V], error) {
	f := Finish{Space: g.space, Key: key, Fence: st.Fence, Keep: g.opts.Keep}
	switch {
	case alone != nil:
		f.Result.Status, f.Hold = Unsharable, g.aloneFor(alone)
	case err != nil:
		class, tell := g.classOf(err)
		if !tell || cancelled { // what a cancelled load says is no news of the origin
			f.Result.Status = Released
			break
		}
		f.Result = Result{Status: Failed, Class: class, Message: message(err)}
		f.Hold = g.opts.Local.Backoff.Delay(class, st.Failures+1, err)
	default:
		b, encErr := g.opts.Encode(r.Value)
		if encErr != nil || len(b) > g.opts.MaxValue { // between processes alone; here it is shared
			f.Result.Status, f.Hold = Unsharable, g.aloneFor(nil)
			break
		}
		f.Result = Result{Status: Loaded, Value: b}
	}
	d, storeErr := g.finish(f)
	if storeErr == nil && d.Lost && !lost {
		g.lost.Add(1)
	}
	if alone != nil {
		err = alone
	}
	return got[V]{r.Value, r.Superseded || d.Superseded || d.Lost, true}, err
}

func (g *Group[V]) aloneFor(n *flight.NotShareableError) time.Duration {
	switch {
	case n != nil && n.For > 0:
		return n.For
	case g.opts.Local.NotShareableFor > 0:
		return g.opts.Local.NotShareableFor
	}
	return 10 * time.Second
}

// finish asks until the store answers or the lease must be over, after which it would be too late anyway.
func (g *Group[V]) finish(f Finish) (d Finished, err error) {
	pause := 10 * time.Millisecond
	for end := time.Now().Add(g.opts.StoreTimeout); ; {
		ctx, cancel := context.WithTimeout(context.Background(), g.opts.StoreTimeout)
		d, err = g.store.Finish(ctx, f)
		cancel()
		if err == nil || time.Now().Add(pause).After(end) {
			return d, err
		}
		time.Sleep(pause)
		pause *= 2
	}
}
