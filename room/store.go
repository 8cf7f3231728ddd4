package room

import "context"

// Store keeps rooms. Engines implement it; roomtest holds each of them to what is said here.
//
// Every method is safe for concurrent use. A context that ends while a change may already be
// on its way makes the error ErrUnknown; one that ends before makes it ErrUnavailable or the
// context's own. A room that does not exist is ErrNotFound.
type Store interface {
	// Do obeys one command and answers after the change and its events are as durable as the
	// engine makes them. Result.Events is not for callers: events are read by Follow and Events.
	// The machine's own answers (ErrFull, …) come as Result.Err; an error is the store's.
	// OpConfigure makes a room that does not exist.
	Do(ctx context.Context, room string, cmd *Command) (Result, error)

	// Follow shows f the room as it is, then every later event in order, until ctx ends or the
	// room is deleted (ErrNotFound). An engine of one process shows an event before it answers
	// the command that made it.
	Follow(ctx context.Context, room string, f Follower) error

	// Events reads up to limit events after a cursor, and returns the cursor to go on from. The
	// zero cursor stands before the oldest event kept, whichever that is.
	// ErrTrimmed: the log no longer reaches back so far; the cursor returned is its floor.
	Events(ctx context.Context, room string, after Cursor, limit int) ([]Event, Cursor, error)

	// Rooms lists the rooms, sorted.
	Rooms(ctx context.Context) ([]string, error)

	// Delete forgets a room and its log; ErrWaiters while people wait, unless force. The next room
	// of that name gives no seq again, and its events are of a later epoch.
	Delete(ctx context.Context, room string, force bool) error

	// Health is nil while commands can be taken; else it says what is wrong and the mend.
	Health() error
}

// Follower is shown a room's log. Its methods are called one at a time and must not block.
type Follower interface {
	// Reset replaces what was known. The mirror is the follower's own from here on.
	Reset(*Mirror)
	// Apply brings events in order, without a gap.
	Apply([]Event)
}

// Keeper is what a Store may be as well: it keeps a room's log for named readers, up to log.max_bytes, however long
// log.retain is. What it was told lasts until the engine is closed: readers say it again after a start, before the log is
// trimmed (which no engine does in its first minute, but for log.max_bytes).
type Keeper interface {
	// KeepFor says that reader still needs every event behind after; it replaces what was said for it before.
	KeepFor(ctx context.Context, room, reader string, after Cursor) error
	// LetGo forgets the reader.
	LetGo(ctx context.Context, room, reader string) error
}
