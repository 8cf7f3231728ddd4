package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ushergo/usher/room"
)

// roomHost is what one node has of a room: the commands that are on their way, the ticker, and the reader of its log.
//
// Commands are gathered: while calls are under way, those that come meanwhile wait together and go with the next call, as
// one. With nobody else on the way a command goes at once.
type roomHost struct {
	store *Rooms
	id    string
	base  string
	ctx   context.Context // ends with the store, or with the room
	stop  context.CancelFunc
	poke  chan struct{} // wakes the ticker before its time

	mu      sync.Mutex
	queue   []*roomCommand
	flights int
	ticking bool
	seed    []byte // of the coming draw, as last told by Redis; order keys are made here
	root    roomRoot
	next    time.Time // when the ticker means to wake

	reader *roomReader // nil until somebody follows; under mu
}

// roomRoot is the Merkle root of the first n ids of the coming draw.
type roomRoot struct {
	n        uint64
	root     string
	seedHash string // of that draw
}

const (
	maxRoomFlights = 2   // calls of one room under way at once: one runs while the next is made
	maxRoomBatch   = 512 // commands of one call: 512 enters take Redis about a millisecond
	maxRoomHeard   = 4   // OpHeards of one call: each has up to 500 signs of life
)

type roomCommand struct {
	cmd  *room.Command
	done chan struct{}
	sent bool // under roomHost.mu
	res  room.Result
	wake time.Duration // of a tick
	err  error
}

func newRoomHost(s *Rooms, id string) *roomHost {
	h := &roomHost{store: s, id: id, base: roomBase(id), poke: make(chan struct{}, 1)}
	h.ctx, h.stop = context.WithCancel(s.ctx)
	return h
}

// do has one command obeyed, with others.
func (h *roomHost) do(ctx context.Context, cmd *room.Command) (room.Result, error) {
	c := &roomCommand{cmd: cmd, done: make(chan struct{})}
	return h.wait(ctx, c)
}

func (h *roomHost) wait(ctx context.Context, c *roomCommand) (room.Result, error) {
	h.mu.Lock()
	h.queue = append(h.queue, c)
	h.launch()
	h.mu.Unlock()
	select {
	case <-c.done:
		return c.res, c.err
	case <-ctx.Done():
	}
	h.mu.Lock()
	sent := c.sent
	if !sent {
		for i, q := range h.queue {
			if q == c {
				h.queue = append(h.queue[:i], h.queue[i+1:]...)
				break
			}
		}
	}
	h.mu.Unlock()
	if !sent {
		return room.Result{}, fmt.Errorf("%w: %w", room.ErrUnavailable, ctx.Err())
	}
	select {
	case <-c.done: // both at once
		return c.res, c.err
	default:
		return room.Result{}, fmt.Errorf("%w: %w", room.ErrUnknown, ctx.Err())
	}
}

// launch sends off what waits, if a flight is free. It is called with mu held.
func (h *roomHost) launch() {
	flights := maxRoomFlights
	if h.store.opts.Batch == 1 {
		flights = maxRoomBatch
	}
	for h.flights < flights && len(h.queue) > 0 {
		n, heard := 0, 0
		for n < len(h.queue) && n < h.store.opts.Batch && heard < maxRoomHeard {
			op := h.queue[n].cmd.Op
			if op == room.OpConfigure || op == room.OpState { // alone: what they do may need a root
				if n == 0 {
					n = 1
				}
				break
			}
			if op == room.OpHeard {
				heard++
			}
			n++
		}
		batch := h.queue[:n:n]
		if h.queue = h.queue[n:]; len(h.queue) == 0 {
			h.queue = nil
		}
		for _, c := range batch {
			c.sent = true
		}
		h.flights++
		go func() {
			h.fly(batch)
			h.mu.Lock()
			h.flights--
			h.launch()
			h.mu.Unlock()
		}()
	}
}

// fly has a batch obeyed to its end, in as many calls as it takes, and answers each command.
func (h *roomHost) fly(batch []*roomCommand) {
	ctx, cancel := context.WithTimeout(context.Background(), roomTimeout)
	defer cancel()
	for idle := 0; len(batch) > 0; {
		left, err := h.call(ctx, batch)
		if err == nil && len(left) == len(batch) {
			if idle++; idle > 100 {
				err = fmt.Errorf("%w: redis: room %s: its script does not come to an end", room.ErrUnavailable, h.id)
			}
		} else {
			idle = 0
		}
		if err != nil {
			for _, c := range left {
				c.err = err
				close(c.done)
			}
			return
		}
		batch = left
	}
}

// call makes one call of the script, answers the commands that it obeyed, and returns the others.
func (h *roomHost) call(ctx context.Context, batch []*roomCommand) (left []*roomCommand, err error) {
	h.mu.Lock()
	args := roomArgs{moves: h.store.opts.Moves, pause: h.store.opts.FailoverPause, random: rand.Uint64(), root: h.root, seed: h.seed}
	h.mu.Unlock()
	if args.seed != nil {
		args.seedHash = seedHash(args.seed)
	}
	if h.store.opts.Now != nil {
		args.clock = h.store.opts.Now()
	}
	plain, rest := split(batch)
	for _, c := range plain {
		args.plain = append(args.plain, c.cmd)
	}
	for _, c := range rest {
		args.rest = append(args.rest, c.cmd)
	}
	if len(batch) == 1 {
		args.random = batch[0].cmd.Rand
	}
	var reply roomReply
	result, err := h.store.exec(ctx, h.base+"h", args.list())
	if err == nil {
		reply, err = readRoomReply(result, args.plain)
	}
	if err != nil {
		return batch, h.store.failed(h.id, err, false)
	}
	for i, r := range reply.plain {
		plain[i].answer(r, reply)
	}
	for i, r := range reply.rest {
		rest[i].answer(r, reply)
	}
	left = append(plain[len(reply.plain):], rest[len(reply.rest):]...)
	switch reply.status {
	case "ok":
		h.known(reply)
	case "none":
		if len(left) > 0 {
			h.store.forget(h)
			return left, fmt.Errorf("%w: %s", room.ErrNotFound, h.id)
		}
	case "purge": // a room of that name was deleted, and has left something
		return left, h.purge(ctx)
	case "seed":
		h.mu.Lock()
		h.seed = []byte(reply.extra)
		h.mu.Unlock()
	case "root":
		return left, h.bringRoot(ctx, reply.cursor)
	default:
		return left, fmt.Errorf("%w: redis: a room script answered %q", room.ErrUnknown, reply.status)
	}
	return left, nil
}

func (c *roomCommand) answer(r room.Result, reply roomReply) {
	r.More = reply.more
	if err := badCommand(c.cmd); err != nil && r.Err != nil {
		r.Err = err
	}
	c.res, c.wake = r, reply.wake
	close(c.done)
}

// split parts the enters that present no ticket from the others. A request id is once among them: who comes second must
// find the first.
func split(batch []*roomCommand) (plain, rest []*roomCommand) {
	if len(batch) == 1 {
		if c := batch[0].cmd; c.Op == room.OpEnter && c.Ref.Seq == 0 && c.NewID != (room.ID{}) {
			return batch, nil
		}
		return nil, batch
	}
	seen := make(map[[16]byte]struct{}, len(batch))
	ids := make(map[room.ID]struct{}, len(batch))
	for _, c := range batch {
		ok := c.cmd.Op == room.OpEnter && c.cmd.Ref.Seq == 0 && c.cmd.NewID != (room.ID{})
		if ok && c.cmd.Request != ([16]byte{}) {
			_, twice := seen[c.cmd.Request]
			seen[c.cmd.Request] = struct{}{}
			ok = !twice
		}
		if ok {
			_, twice := ids[c.cmd.NewID]
			ids[c.cmd.NewID] = struct{}{}
			ok = !twice
		}
		if ok {
			plain = append(plain, c)
		} else {
			rest = append(rest, c)
		}
	}
	return plain, rest
}

// known notes that the room exists: from now on it is ticked.
func (h *roomHost) known(reply roomReply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ticking && h.ctx.Err() == nil {
		h.ticking = true
		h.store.mu.Lock()
		closed := h.store.closed
		if !closed {
			h.store.wg.Go(h.ticks)
		}
		h.store.mu.Unlock()
	}
	wake := reply.wake
	if reply.more {
		wake = 0
	}
	if at := time.Now().Add(wake); at.Before(h.next.Add(-time.Millisecond)) {
		h.next = at
		select {
		case h.poke <- struct{}{}:
		default:
		}
	}
}

// ticks does what time brings, while this node owns the room.
func (h *roomHost) ticks() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	trimmed := time.Now()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.poke:
			h.mu.Lock()
			wait := time.Until(h.next)
			h.mu.Unlock()
			if wait > 0 {
				timer.Reset(wait)
				continue
			}
		case <-timer.C:
		}
		wait := 250 * time.Millisecond // an owner that was killed has a successor within its lease and this
		if h.store.opts.Owns(h.id) {
			var err error
			wait, err = h.tick(h.ctx)
			switch {
			case h.ctx.Err() != nil || errors.Is(err, room.ErrNotFound):
				return
			case err != nil:
				h.store.opts.Logger.Warn("a tick was not done; it is tried again", "room", h.id, "err", err)
				wait = 200 * time.Millisecond
			}
			if time.Since(trimmed) > roomTrimEvery {
				trimmed = time.Now()
				h.trim(h.ctx)
			}
		}
		h.mu.Lock()
		h.next = time.Now().Add(wait)
		h.mu.Unlock()
		timer.Reset(wait)
	}
}

// tick ticks once; 0 when there is more to do at once.
func (h *roomHost) tick(ctx context.Context) (time.Duration, error) {
	c := &roomCommand{cmd: &room.Command{Op: room.OpTick, Rand: rand.Uint64()}, done: make(chan struct{})}
	if _, err := h.wait(ctx, c); err != nil {
		return 0, err
	}
	if c.res.Err != nil {
		return 0, c.res.Err
	}
	if c.res.More {
		return 0, nil
	}
	return c.wake, nil
}
