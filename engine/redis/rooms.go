package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

// RoomOptions of NewRooms. The zero value is a good one.
type RoomOptions struct {
	Logger *slog.Logger // default: nobody
	// Owns says whether this node does the ticks of a room. It is asked before each tick and must be quick. Two nodes that
	// tick the same room do no harm; a room that nobody ticks stands still. Default: this node ticks every room it knows.
	Owns func(room string) bool
	// FailoverPause is how long nobody is admitted after Redis has lost writes that it had answered, or may have (another
	// replication id): those who were inside come back meanwhile. Default 10 s; negative: none.
	FailoverPause time.Duration
	// Batch is how many commands of a room go in one call at most; default 512. 1 gathers nothing. For measurements.
	Batch int
	// Moves is how many tickets one call promotes, expires or abandons at most; default 150, of which none takes Redis 5 ms.
	// At most 500. For tests.
	Moves int
	// WaitReplicas is by how many replicas a change must be known before it is answered (WAIT), so that a promotion of one of
	// them loses nothing that was answered. With fewer, outcomes are unknown. Default 0: the master alone answers.
	WaitReplicas int
	// Now is the engine's clock, µs since 1970; default: Redis' own. For tests.
	Now func() int64
}

const (
	roomsKey    = "usher:rooms"    // set of the rooms' names; a name may be there before its room, or after it
	roomTimeout = 10 * time.Second // of one call, after which its outcome is unknown
)

// Rooms keeps rooms in Redis or Valkey, version 7 or later: single, Sentinel or Cluster. It implements room.Store. Safe for
// concurrent use. ROOMS.md says what it keeps there, and what a failover loses.
type Rooms struct {
	client rueidis.Client
	opts   RoomOptions
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	hosts  map[string]*roomHost
	closed bool
}

var _ room.Store = (*Rooms)(nil)

// NewRooms makes a store on a client that stays the caller's to close, after Close. It asks the server whether it is there.
func NewRooms(ctx context.Context, client rueidis.Client, opts RoomOptions) (*Rooms, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Owns == nil {
		opts.Owns = func(string) bool { return true }
	}
	if opts.FailoverPause == 0 {
		opts.FailoverPause = 10 * time.Second
	}
	opts.FailoverPause = max(opts.FailoverPause, 0)
	if opts.Moves <= 0 || opts.Moves > room.MaxMoves {
		opts.Moves = roomMoves
	}
	if opts.Batch <= 0 {
		opts.Batch = maxRoomBatch
	}
	s := &Rooms{client: client, opts: opts, hosts: map[string]*roomHost{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := client.Do(ctx, client.B().Exists().Key(roomsKey).Build()).Error(); err != nil {
		s.stop()
		return nil, roomError("-", err, true)
	}
	return s, nil
}

// Close ends ticks and followers, and waits for them. Commands under way are answered.
func (s *Rooms) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
	return nil
}

// host returns what this node has of a room, made when it is asked for first.
func (s *Rooms) host(id string) (*roomHost, error) {
	if !room.ValidID(id) {
		return nil, fmt.Errorf("%w: %.80q", room.ErrNotFound, id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: usher is stopping", room.ErrUnavailable)
	}
	h := s.hosts[id]
	if h == nil {
		h = newRoomHost(s, id)
		s.hosts[id] = h
	}
	return h, nil
}

// forget drops what is known of a room that does not exist; ticks end by themselves, followers are told.
func (s *Rooms) forget(h *roomHost) {
	s.mu.Lock()
	if s.hosts[h.id] == h {
		delete(s.hosts, h.id)
	}
	s.mu.Unlock()
	h.ended()
	h.stop()
}

// Do implements room.Store.
func (s *Rooms) Do(ctx context.Context, id string, cmd *room.Command) (room.Result, error) {
	if err := ctx.Err(); err != nil {
		return room.Result{}, fmt.Errorf("%w: %w", room.ErrUnavailable, err)
	}
	h, err := s.host(id)
	if err != nil {
		return room.Result{}, err
	}
	if cmd.Op == room.OpConfigure {
		if cmd.Config == nil || cmd.Config.ID != id {
			return room.Result{}, fmt.Errorf("%w: a configuration for room %q", room.ErrBadCommand, id)
		}
		if err := cmd.Config.Validate(); err != nil {
			return room.Result{}, err
		}
		if err := s.client.Do(ctx, s.client.B().Sadd().Key(roomsKey).Member(id).Build()).Error(); err != nil {
			return room.Result{}, fmt.Errorf("%w: %w", room.ErrUnavailable, roomError(id, err, true))
		}
	}
	return h.do(ctx, cmd)
}

// Tick does what time brings to a room: schedule, expiry, abandonment, promotion. wake is how long after it the next tick
// has something to do; at most a second. Harmless at any time, on any node.
func (s *Rooms) Tick(ctx context.Context, id string) (wake time.Duration, err error) {
	h, err := s.host(id)
	if err != nil {
		return 0, err
	}
	return h.tick(ctx)
}

// Rooms implements room.Store.
func (s *Rooms) Rooms(ctx context.Context) ([]string, error) {
	ids, err := s.client.Do(ctx, s.client.B().Smembers().Key(roomsKey).Build()).AsStrSlice()
	if err != nil {
		return nil, roomError("-", err, true)
	}
	slices.Sort(ids)
	var cmds rueidis.Commands
	for _, id := range ids {
		cmds = append(cmds, s.client.B().Get().Key(roomBase(id)+"h").Build())
	}
	list := make([]string, 0, len(ids))
	for i, got := range s.client.DoMulti(ctx, cmds...) {
		raw, err := got.ToString()
		if rueidis.IsRedisNil(err) {
			continue
		}
		if err != nil {
			return nil, roomError(ids[i], err, true)
		}
		h, err := readRoomHead(roomBase(ids[i])+"h", raw, nil)
		if err != nil {
			return nil, err
		}
		if h.exists() {
			list = append(list, ids[i])
		}
	}
	return list, nil
}

// Delete implements room.Store. What the room had goes in parts; a room of that name can be made again at once.
func (s *Rooms) Delete(ctx context.Context, id string, force bool) error {
	h, err := s.host(id)
	if err != nil {
		return err
	}
	how := "delete"
	if force {
		how = "force"
	}
	answer, err := roomDeleteScript.Exec(ctx, s.client, []string{h.base + "h"}, []string{"", "0", "0", "", how}).ToString()
	switch {
	case err != nil:
		return roomError(id, err, false)
	case answer == "none":
		s.forget(h)
		return fmt.Errorf("%w: %s", room.ErrNotFound, id)
	case answer != "gone":
		return fmt.Errorf("%w: %s; close the room and let it drain, or use force", room.ErrWaiters, answer)
	}
	if err := h.purge(ctx); err != nil {
		s.opts.Logger.Warn("a deleted room's keys were not all removed; making it again, or usher redis clean, goes on", "room", id, "err", err)
	} else if err := s.client.Do(ctx, s.client.B().Srem().Key(roomsKey).Member(id).Build()).Error(); err != nil {
		s.opts.Logger.Warn("a deleted room is still listed; usher redis clean removes it", "room", id, "err", err)
	}
	s.forget(h)
	return nil
}

// purge removes what a deleted room has left, in short calls.
func (h *roomHost) purge(ctx context.Context) error {
	for {
		answer, err := roomDeleteScript.Exec(ctx, h.store.client, []string{h.base + "h"}, []string{"", "0", "0", "", "purge"}).ToString()
		if err != nil {
			return roomError(h.id, err, false)
		}
		if answer != "more" {
			return nil
		}
	}
}

// Health implements room.Store.
func (s *Rooms) Health() error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return fmt.Errorf("%w: usher is stopping", room.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := s.client.Do(ctx, s.client.B().Ping().Build()).Error()
	if err == nil {
		return nil
	}
	if _, ok := rueidis.IsRedisErr(err); ok {
		return roomError("-", err, true)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("no answer within 2 s")
	}
	return fmt.Errorf("%w: redis: %w; see that it runs and that engine.addrs, the password and tls are right", room.ErrUnavailable, err)
}
