package redis

import (
	"context"
	"fmt"
	"log/slog"
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
}

// Rooms keeps rooms in Redis or Valkey, version 7 or later: single, Sentinel or Cluster. It implements room.Store. Safe for
// concurrent use.
type Rooms struct {
	client rueidis.Client
	opts   RoomOptions
}

var _ room.Store = (*Rooms)(nil)

// NewRooms makes a store on a client that stays the caller's to close, after Close. It asks the server whether it is there.
func NewRooms(ctx context.Context, client rueidis.Client, opts RoomOptions) (*Rooms, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Rooms{client: client, opts: opts}, nil
}

// Close ends ticks and followers, and waits for them.
func (s *Rooms) Close() error { return nil }

// Tick does what time brings to a room: schedule, expiry, abandonment, promotion. wake is how long after it the next tick
// has something to do; at most a second. Harmless at any time, on any node.
func (s *Rooms) Tick(ctx context.Context, id string) (wake time.Duration, err error) {
	return 0, fmt.Errorf("%w: not built yet", room.ErrUnavailable)
}

// Do implements room.Store.
func (s *Rooms) Do(ctx context.Context, id string, cmd *room.Command) (room.Result, error) {
	return room.Result{}, fmt.Errorf("%w: not built yet", room.ErrUnavailable)
}

// Follow implements room.Store.
func (s *Rooms) Follow(ctx context.Context, id string, f room.Follower) error {
	return fmt.Errorf("%w: not built yet", room.ErrUnavailable)
}

// Events implements room.Store.
func (s *Rooms) Events(ctx context.Context, id string, after room.Cursor, limit int) ([]room.Event, room.Cursor, error) {
	return nil, after, fmt.Errorf("%w: not built yet", room.ErrUnavailable)
}

// Rooms implements room.Store.
func (s *Rooms) Rooms(ctx context.Context) ([]string, error) {
	return nil, fmt.Errorf("%w: not built yet", room.ErrUnavailable)
}

// Delete implements room.Store.
func (s *Rooms) Delete(ctx context.Context, id string, force bool) error {
	return fmt.Errorf("%w: not built yet", room.ErrUnavailable)
}

// Health implements room.Store.
func (s *Rooms) Health() error { return fmt.Errorf("%w: not built yet", room.ErrUnavailable) }
