package memory

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk"
	"github.com/ushergo/usher/gate"
)

// GateOptions of OpenGates. The zero value is a good one.
type GateOptions struct {
	Logger *slog.Logger // default: nobody
	// NoSync answers before the disk has what was answered. For tests.
	NoSync bool
	// Now is the engine's clock, µs since 1970; default: a clock that steps of the machine's
	// clock do not disturb. For tests.
	Now func() int64
	// FS is the disk; default the real one. For tests.
	FS disk.FS
}

// Gates keeps gates' keys in memory. It implements gate.Store.
//
// On the disk are the limits that were set, synced before Set is answered, and a block of
// reserved fences. After a restart permits, verdicts and keys that an acquire made are forgotten: for
// one lease there may be as many holders again, whose fences are greater.
type Gates struct {
	book *gateBook
	log  *slog.Logger
	now  func() int64
	seed maphash.Seed
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	shards [64]gateShard
}

var _ gate.Store = (*Gates)(nil)

type gateShard struct {
	mu       sync.Mutex
	keys     map[string]*gate.Machine
	watchers map[string]map[*func()]struct{}
	floor    uint64 // of fences, for keys not known
	closed   bool
}

// OpenGates brings back the gates of the data folder dir, or begins there; with dir "" nothing
// is kept and fences go on above the old ones only as far as the machine's clock does. Errors
// are those of journal.Open, with their mends. It may be open beside an Engine of the same folder.
func OpenGates(dir string, opts GateOptions) (*Gates, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	folder := ""
	if dir != "" {
		folder = filepath.Join(dir, "gates")
	}
	book, err := openGateBook(folder, journal.Options{FS: opts.FS, Logger: opts.Logger, NoSync: opts.NoSync, SegmentBytes: 1 << 20})
	if err != nil {
		return nil, fmt.Errorf("gates: %w", err)
	}
	s := &Gates{book: book, log: opts.Logger, now: opts.Now, seed: maphash.MakeSeed()}
	s.ctx, s.stop = context.WithCancel(context.Background())
	var c *clock
	if s.now == nil {
		c = newClock()
		s.now = c.now
	}
	for i := range s.shards {
		s.shards[i] = gateShard{keys: map[string]*gate.Machine{}, watchers: map[string]map[*func()]struct{}{}, floor: book.page.Reserved}
	}
	for key, limit := range book.page.Limits {
		m := gate.NewMachine(book.page.Reserved)
		m.Step(&gate.Command{Op: gate.OpSet, Permits: limit}, s.now())
		s.shard(key).keys[key] = m
	}
	s.wg.Go(func() { s.keep(c) })
	return s, nil
}

func (s *Gates) shard(key string) *gateShard {
	return &s.shards[maphash.String(s.seed, key)%uint64(len(s.shards))]
}

// Do implements gate.Store.
func (s *Gates) Do(ctx context.Context, key string, cmd *gate.Command) (gate.Result, error) {
	if err := gate.CheckKey(key); err != nil {
		return gate.Result{}, err
	}
	if err := cmd.Check(); err != nil {
		return gate.Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return gate.Result{}, err
	}
	res, pos, err := s.step(key, cmd)
	if err != nil {
		return gate.Result{}, err
	}
	if err := s.book.sync(ctx, pos); err != nil {
		return gate.Result{}, err
	}
	if res.Err == nil && (cmd.Op == gate.OpAcquire || cmd.Op == gate.OpReopen) {
		if err := s.book.allow(ctx, res.Fence); err != nil {
			return gate.Result{}, err
		}
	}
	return res, nil
}

func (s *Gates) step(key string, cmd *gate.Command) (gate.Result, journal.Pos, error) {
	writes := cmd.Op == gate.OpSet || cmd.Op == gate.OpDelete
	sh := s.shard(key)
	sh.mu.Lock()
	if sh.closed {
		sh.mu.Unlock()
		return gate.Result{}, 0, fmt.Errorf("%w: usher is stopping", gate.ErrUnavailable)
	}
	if writes {
		if err := s.book.ready(); err != nil {
			sh.mu.Unlock()
			return gate.Result{}, 0, err
		}
	}
	m := sh.keys[key]
	if m == nil {
		m = gate.NewMachine(sh.floor)
		sh.keys[key] = m
	}
	res := m.Step(cmd, s.now())
	var pos journal.Pos
	var err error
	switch cmd.Op {
	case gate.OpSet:
		pos, err = s.book.write(gatePage{Limits: map[string]int64{key: cmd.Permits}})
	case gate.OpDelete:
		pos, err = s.book.write(gatePage{Limits: map[string]int64{key: -1}})
	}
	if cmd.Op == gate.OpDelete || !res.Set && m.Fence() <= sh.floor { // nothing is known that the next one would not know
		sh.drop(key, m, res.At)
	}
	wakes := sh.wakes(key, res.Wake)
	sh.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
	return res, pos, err
}

// drop forgets a key that may be forgotten, but for its fence.
func (sh *gateShard) drop(key string, m *gate.Machine, now int64) bool {
	if !m.Idle(now) {
		return false
	}
	sh.floor = max(sh.floor, m.Fence())
	delete(sh.keys, key)
	return true
}

func (sh *gateShard) wakes(key string, wake bool) (fs []func()) {
	if !wake {
		return nil
	}
	for f := range sh.watchers[key] {
		fs = append(fs, *f)
	}
	return fs
}

// Watch implements gate.Store.
func (s *Gates) Watch(ctx context.Context, key string, wake func()) error {
	if err := gate.CheckKey(key); err != nil {
		return err
	}
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	w := &wake
	if sh.watchers[key] == nil {
		sh.watchers[key] = map[*func()]struct{}{}
	}
	sh.watchers[key][w] = struct{}{}
	context.AfterFunc(ctx, func() {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if delete(sh.watchers[key], w); len(sh.watchers[key]) == 0 {
			delete(sh.watchers, key)
		}
	})
	return nil
}

// Health implements gate.Store.
func (s *Gates) Health() error {
	if s.ctx.Err() != nil {
		return fmt.Errorf("%w: usher is stopping", gate.ErrUnavailable)
	}
	if err := s.book.err(); err != nil {
		return fmt.Errorf("%w: gates: %w", gate.ErrUnavailable, err)
	}
	return nil
}

// Close frees the folder.
func (s *Gates) Close() error {
	s.stop()
	s.wg.Wait()
	for i := range s.shards {
		s.shards[i].mu.Lock()
		s.shards[i].closed = true
		s.shards[i].mu.Unlock()
	}
	if err := s.book.close(); !errors.Is(err, journal.ErrClosed) {
		return err
	}
	return nil
}

const sweepEvery = time.Minute

// keep follows the clock, and forgets what may be forgotten.
func (s *Gates) keep(c *clock) {
	tick := time.NewTicker(slewEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-s.ctx.Done():
			return
		case t := <-tick.C:
			if c != nil {
				c.follow(t, s.log)
			}
		}
		if n%int(sweepEvery/slewEvery) != 0 {
			continue
		}
		for i := range s.shards {
			s.shards[i].sweep(s.now())
		}
		if err := s.book.tidy(s.ctx); err != nil && s.ctx.Err() == nil {
			s.log.Error("the gates' log was not tidied; it grows until it is", "err", err)
		}
	}
}

// sweep looks at every key, a few at a time so that callers come in between. Permits nobody
// gave back are taken back here too, for the figures; waiters take them back by themselves.
func (sh *gateShard) sweep(now int64) {
	sh.mu.Lock()
	keys := make([]string, 0, len(sh.keys))
	for key := range sh.keys {
		keys = append(keys, key)
	}
	sh.mu.Unlock()
	for _, key := range keys {
		for more := true; more; {
			var wakes []func()
			more = false
			sh.mu.Lock()
			if m := sh.keys[key]; m != nil {
				r := m.Step(&gate.Command{Op: gate.OpStatus}, now)
				wakes, more = sh.wakes(key, r.Wake), r.More || m.Forgetting(now)
				sh.drop(key, m, now)
			}
			sh.mu.Unlock()
			for _, wake := range wakes {
				wake()
			}
		}
	}
}
