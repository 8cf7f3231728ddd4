package flight

import (
	"context"
	"errors"
	"runtime/debug"
	"time"
)

// run calls the load and ends the flight, whatever the load does. When the leader runs it in her own goroutine, r is
// where she wants the result, and f is not hers any more afterwards.
func (g *Group[K, V]) run(f *flight[K, V], r *told[V]) {
	normal := false
	defer func() {
		if normal {
			return
		}
		var zero V
		if p := recover(); p != nil {
			g.finish(f, r, zero, &PanicError{Value: p, Stack: debug.Stack()}, Unclassed)
		} else {
			g.finish(f, r, zero, &GoexitError{Stack: debug.Stack()}, Unclassed)
		}
	}()
	val, err := f.load(f.ctx)
	class := Unclassed
	if err != nil {
		class = g.classify(err)
	} else if g.opts.Fill != nil {
		g.fill(f, val)
	}
	normal = true
	g.finish(f, r, val, err, class)
}

func (g *Group[K, V]) classify(err error) Class {
	var alone *NotShareableError
	if errors.As(err, &alone) {
		return Unclassed
	}
	return classOf(g.opts.Classify, err)
}

// fill gives a good value to Options.Fill unless a Forget has come; a Forget that comes now waits.
func (g *Group[K, V]) fill(f *flight[K, V], val V) {
	g.mu.Lock()
	if f.forgotten || f.epoch != g.m.epoch || f.solo || f.settled {
		g.mu.Unlock()
		return
	}
	f.filling = true
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		f.filling = false
		g.mu.Unlock()
		g.filled.Broadcast()
	}()
	g.opts.Fill(f.key, val)
}

// wellDone is what the machine must know of a good value: nothing. It is never changed.
var wellDone = outcome{}

// finish is the real end of f's load.
func (g *Group[K, V]) finish(f *flight[K, V], r *told[V], val V, err error, class Class) {
	out, alone := &wellDone, false
	if err != nil {
		o, a := g.outcome(err, class)
		out, alone = &o, a
	}
	g.mu.Lock()
	var now int64
	if err != nil || f.began != 0 || g.m.needsClock() {
		now = g.now()
	}
	told := f.settled
	if !told {
		f.val = val
		if err != nil {
			f.err, f.alone = out.err, alone
		}
	}
	var e *LoadEnd
	if g.opts.Observer != nil {
		e = &LoadEnd{Callers: int(f.waiters), Orphan: f.orphan, Class: class, Err: out.err}
	}
	failures := 0
	if class != Unclassed {
		failures = g.failures(f.key)
	}
	g.m.end(f, out, now)
	if failures > 0 {
		g.counts.repeated++
	}
	var todo []*flight[K, V]
	if len(g.m.ready) > 0 || g.m.budget.pending > 0 {
		todo = g.ready()
	}
	if g.m.closed {
		g.idle.Broadcast()
	}
	done, ctx := f.done, f.ctx
	if e != nil {
		e.Superseded, e.Failures, e.Share = f.superseded, failures, shareOf(f)
		e.Took = time.Duration(now - f.began)
	}
	if r != nil {
		f.tell(r, true)
		if g.reusable(f) {
			f.blank()
			g.spare = f
		}
	}
	g.mu.Unlock()
	ctx.end(&causeOver)
	if !told && done != nil {
		close(done)
	}
	if todo != nil {
		g.launch(todo)
	}
	if e != nil {
		g.opts.Observer.LoadEnded(*e)
	}
}

// failures in a row that are remembered of key.
func (g *Group[K, V]) failures(key K) int {
	if mm := g.m.memos.of[key]; mm != nil && !mm.unshareable {
		return mm.failures
	}
	return 0
}

// outcome tells the machine what an error means. A not-shareable verdict is no error to its caller.
func (g *Group[K, V]) outcome(err error, class Class) (outcome, bool) {
	if err == nil {
		return outcome{}, false
	}
	var alone *NotShareableError
	if errors.As(err, &alone) {
		d := alone.For
		if d <= 0 {
			d = g.opts.NotShareableFor
		}
		return outcome{unshareable: true, markFor: int64(d)}, true
	}
	out := outcome{err: err, class: class}
	if class != Unclassed && !g.opts.Backoff.Off {
		out.hold = func(failures int) int64 { return int64(g.opts.Backoff.Delay(class, failures, err)) }
	}
	return out, false
}

// Deliver lets a load tell its result to all who wait before it ends, and with a good value to all who come until it
// ends, for instance when a response's header is there and its body is still to come. err is as a load would return
// it: nil, NotShareable, or a failure. What the load returns afterwards changes nothing any more but its key and its
// budget, which stay taken until then; its timeout no longer counts. ctx is the load's own or derived from it.
//
// A caller who runs the load in her own goroutine (see Do) has the result when the load returns.
//
// It answers how many callers it told. It answers false, and nothing happens, if the result has been told already (by an
// earlier Deliver or by the timeout), or if ctx belongs to no load with values of type V.
func Deliver[V any](ctx context.Context, val V, err error) (callers int, ok bool) {
	d, ok := ctx.Value(contextKey{}).(interface{ deliver(V, error) (int, bool) })
	if !ok {
		return 0, false
	}
	return d.deliver(val, err)
}

func (c *loadContext[K, V]) deliver(val V, err error) (int, bool) {
	g := c.g
	g.mu.Lock()
	f := c.flight()
	g.mu.Unlock()
	if f == nil {
		return 0, false
	}
	class := Unclassed
	if err != nil {
		class = g.classify(err)
	} else if g.opts.Fill != nil {
		g.fill(f, val)
	}
	out, alone := g.outcome(err, class)
	g.mu.Lock()
	if c.flight() != f || f.settled {
		g.mu.Unlock()
		return 0, false
	}
	callers := int(f.waiters)
	f.val, f.err, f.alone, f.early = val, out.err, alone, true
	g.m.deliver(f, &out, g.now())
	if f.done == nil {
		f.done = make(chan struct{})
	}
	todo := g.ready()
	g.mu.Unlock()
	close(f.done)
	g.launch(todo)
	return callers, true
}
