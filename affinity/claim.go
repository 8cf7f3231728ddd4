package affinity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ushergo/usher/keylock"
)

// claim asks for the key and builds its session.
func (o *Owner[S]) claim(ctx context.Context, key string) (*session[S], error) {
	if err := o.reserve(); err != nil {
		return nil, o.elsewhere(ctx, key, err)
	}
	defer func() {
		o.mu.Lock()
		o.building--
		o.mu.Unlock()
		o.builds.Done()
	}()
	for range 3 {
		token := o.token(key)
		began := time.Now()
		got, err := o.ask(ctx, key, token)
		if err != nil {
			return nil, err // the token is kept: the next one to ask is the same claim
		}
		o.forgetToken(key)
		switch {
		case got.Verdict == Yours && got.Row.Left >= o.opts.BuildFor/2:
			return o.build(ctx, key, got.Row, began)
		case got.Verdict == Yours, got.Verdict == Theirs && got.Row.Owner == o.id:
			// A claim that was granted long ago and whose answer was lost has little time left; or a row of our own that no
			// session here belongs to: its clear was lost.
			if _, err := o.clear(ctx, key, got.Row.Generation); err != nil {
				return nil, err
			}
		case got.Verdict == Theirs:
			return nil, o.theirs(got.Row)
		}
	}
	return nil, fmt.Errorf("%w: the claim of %q was taken back three times", ErrUnavailable, key)
}

// elsewhere says who has the session that cannot be made here.
func (o *Owner[S]) elsewhere(ctx context.Context, key string, why error) error {
	if errors.Is(why, ErrClosed) {
		return why
	}
	if row, err := o.Lookup(ctx, key); err == nil && row.State != None && row.Owner != o.id {
		return o.theirs(row)
	}
	return why
}

func (o *Owner[S]) theirs(row Row) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts.Elsewhere++
	return &NotOwnerError{row}
}

func (o *Owner[S]) reserve() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ctx.Err() != nil:
		return context.Cause(o.ctx)
	case o.draining:
		return ErrDraining
	case o.opts.MaxSessions > 0 && len(o.sessions)+o.building >= o.opts.MaxSessions:
		return ErrCapacity
	}
	o.building++
	o.builds.Add(1)
	return nil
}

// maxTokens bounds what is remembered of an outage; a claim that is forgotten ends at its deadline.
const maxTokens = 10_000

func (o *Owner[S]) token(key string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tokens[key]
	if t == "" {
		if len(o.tokens) >= maxTokens {
			clear(o.tokens)
		}
		t = rand.Text()
		o.tokens[key] = t
	}
	return t
}

func (o *Owner[S]) forgetToken(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.tokens, key)
}

// ask claims, and asks a second time when the answer was lost.
func (o *Owner[S]) ask(ctx context.Context, key, token string) (Claimed, error) {
	var got Claimed
	var err error
	for range 2 {
		call, cancel := context.WithTimeout(ctx, o.opts.CallTimeout)
		got, err = o.store.Claim(call, Claim{
			Space: o.opts.Space, Key: key, Owner: o.id, Addr: o.opts.Addr, Token: token, Build: o.opts.BuildFor,
		})
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrBadRequest) || errors.Is(err, ErrForeign) {
			break
		}
	}
	return got, unavailable(err)
}

func unavailable(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrBadRequest) || errors.Is(err, ErrForeign) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func (o *Owner[S]) clear(ctx context.Context, key string, gen uint64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, o.opts.CallTimeout)
	defer cancel()
	got, err := o.store.Clear(ctx, Clear{Space: o.opts.Space, Key: key, Owner: o.id, Generation: gen})
	return got.Cleared, unavailable(err)
}

func (o *Owner[S]) build(ctx context.Context, key string, row Row, began time.Time) (*session[S], error) {
	bctx, cancel := context.WithDeadlineCause(ctx, began.Add(min(row.Left, o.opts.BuildFor)), fmt.Errorf("affinity: the session was not built within %v", o.opts.BuildFor))
	defer cancel()
	defer context.AfterFunc(o.ctx, cancel)()
	v, err := o.opts.Build(bctx, key, row.Generation)
	if o.opts.Observer != nil {
		o.opts.Observer.Built(key, time.Since(began), err)
	}
	o.mu.Lock()
	if err != nil {
		o.counts.Failed++
	} else {
		o.counts.Built++
	}
	o.mu.Unlock()
	if err != nil {
		o.release(key, row.Generation)
		return nil, err
	}
	now := time.Now()
	s := &session[S]{Session: Session[S]{Value: v, Key: key, ID: rand.Text(), Generation: row.Generation}, born: now, used: now, confirmed: now}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.busy = 1
	// It is here before the directory says so: who reads the row may come at once.
	o.mu.Lock()
	o.sessions[key] = s
	o.mu.Unlock()
	// The row must say ready before anybody uses it. What ctx says counts no more: the session exists.
	held, err := o.confirm(context.WithoutCancel(ctx), []*session[S]{s}, true)
	err = unavailable(err)
	o.mu.Lock()
	here := o.sessions[key] == s
	o.mu.Unlock()
	switch {
	case err == nil && !held[0]:
		err = ErrLost
	case err == nil && !here: // retired before it was used
		err = context.Cause(s.ctx)
	case err == nil && o.ctx.Err() != nil:
		err = context.Cause(o.ctx)
	case err == nil && context.Cause(ctx) == keylock.ErrForced:
		err = keylock.ErrForced
	}
	if err != nil {
		o.retire(key, s.Generation, err)
		return nil, err
	}
	return s, nil
}

// release gives a row back aside, and again for a while when the directory does not answer; after that it expires.
func (o *Owner[S]) release(key string, gen uint64) {
	o.away.Go(func() {
		for wait := 50 * time.Millisecond; wait < 10*time.Second; wait *= 3 {
			if _, err := o.clear(context.Background(), key, gen); err == nil || errors.Is(err, ErrBadRequest) {
				return
			}
			select {
			case <-time.After(wait):
			case <-o.ctx.Done():
				return
			}
		}
	})
}
