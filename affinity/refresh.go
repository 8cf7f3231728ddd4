package affinity

import (
	"context"
	"slices"
	"time"
)

// batch is how many rows one call confirms.
const batch = 500

// refreshLoop confirms all rows every Every, and announces the instance.
func (o *Owner[S]) refreshLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-o.ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		o.announce(o.ctx)
		o.mu.Lock()
		all := make([]*session[S], 0, len(o.sessions))
		for _, s := range o.sessions {
			all = append(all, s)
		}
		o.mu.Unlock()
		for some := range slices.Chunk(all, batch) {
			o.refresh(o.ctx, some)
		}
		timer.Reset(max(o.opts.Every-time.Since(began), o.opts.Every/10))
	}
}

// confirm asks the directory about rows. What it confirmed counts from before the call.
func (o *Owner[S]) confirm(ctx context.Context, all []*session[S], ready bool) ([]bool, error) {
	items := make([]Item, len(all))
	for i, s := range all {
		items[i] = Item{Key: s.Key, Generation: s.Generation, Ready: ready, Session: s.ID}
	}
	ctx, cancel := context.WithTimeout(ctx, o.opts.CallTimeout)
	defer cancel()
	began := time.Now()
	got, err := o.store.Refresh(ctx, Refresh{Space: o.opts.Space, Owner: o.id, TTL: o.opts.TTL, Items: items})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note(began, err)
	if err != nil {
		return nil, err
	}
	for i, s := range all {
		if got.Held[i] && began.After(s.confirmed) {
			s.confirmed = began
		}
	}
	return got.Held, nil
}

// note remembers whether the directory answers. Called with mu held.
func (o *Owner[S]) note(began time.Time, err error) {
	if o.ctx.Err() != nil {
		return
	}
	if err != nil && o.failing == nil {
		o.opts.Logger.Error("the directory does not answer; sessions go on, new ones have to wait", "space", o.opts.Space, "err", err)
	} else if err == nil && o.failing != nil {
		o.opts.Logger.Info("the directory answers again", "space", o.opts.Space)
	}
	o.failing, o.failed = unavailable(err), began
}

// refresh confirms sessions and ends those that are no longer ours.
func (o *Owner[S]) refresh(ctx context.Context, all []*session[S]) {
	held, err := o.confirm(ctx, all, false)
	lost := 0
	for i, ok := range held {
		if !ok {
			lost++
			o.retire(all[i].Key, all[i].Generation, ErrLost)
		}
	}
	if o.opts.Observer != nil && o.ctx.Err() == nil {
		o.opts.Observer.Refreshed(len(held)-lost, lost, err)
	}
}

// announce says that the instance lives, and hears what is asked of it.
func (o *Owner[S]) announce(ctx context.Context) {
	o.mu.Lock()
	a := Announce{
		Space: o.opts.Space, Owner: o.id, Addr: o.opts.Addr, Sessions: len(o.sessions) + o.building, Max: o.opts.MaxSessions,
		Draining: o.draining && o.deadline.IsZero(), TTL: 3*o.opts.Every + o.opts.CallTimeout,
	}
	o.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, o.opts.CallTimeout)
	defer cancel()
	began := time.Now()
	got, err := o.store.Announce(ctx, a)
	o.mu.Lock()
	o.note(began, err)
	switch {
	case err != nil:
	case got.Draining && (!o.draining || !o.deadline.IsZero() && got.DrainFor != o.drainFor):
		within := got.DrainFor
		if within == 0 {
			within = o.opts.DrainFor
		}
		o.draining, o.deadline, o.drainFor = true, time.Now().Add(within), got.DrainFor
		o.opts.Logger.Info("this instance was asked to drain", "space", o.opts.Space, "for", within)
	case !got.Draining && !o.deadline.IsZero():
		o.draining, o.deadline = false, time.Time{}
		o.opts.Logger.Info("this instance takes sessions again", "space", o.opts.Space)
	}
	o.mu.Unlock()
	if err == nil && got.Superseded {
		o.opts.Logger.Error("a later start of this instance lives; this one stops", "instance", o.id.Instance)
		o.stop(ErrSuperseded)
		o.retireAll(ErrSuperseded)
	}
}

// watchLoop ends what time ends. It asks nobody, so that no call that hangs keeps a session from ending.
func (o *Owner[S]) watchLoop() {
	tick := time.NewTicker(o.tick())
	defer tick.Stop()
	for {
		select {
		case <-o.ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		type end struct {
			key string
			gen uint64
			why error
		}
		var ends []end
		o.mu.Lock()
		o.notice(now)
		for key, s := range o.sessions {
			why := error(nil)
			switch {
			case now.Sub(s.confirmed) >= o.opts.TTL-o.opts.Margin:
				why = ErrUnconfirmed
			case !o.deadline.IsZero() && now.After(o.deadline):
				why = ErrDraining
			case s.busy > 0:
			case o.opts.Idle > 0 && now.Sub(s.used) >= o.opts.Idle:
				why = ErrIdle
			case o.opts.MaxLife > 0 && now.Sub(s.born) >= o.opts.MaxLife:
				why = ErrAge
			}
			if why != nil {
				ends = append(ends, end{key, s.Generation, why})
			}
		}
		o.mu.Unlock()
		for _, e := range ends {
			o.retireIf(e.key, e.gen, e.why, e.why == ErrIdle || e.why == ErrAge)
		}
	}
}
