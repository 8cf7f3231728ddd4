package relay

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Source is where events come from: a room's log, a Kinesis stream, a JetStream stream, a Redis stream. It keeps no
// cursor: the relay does, one for each sink, under the fence of a lease. All methods are safe for concurrent use.
type Source interface {
	// Partitions lists what can be read now. It is called at the start and every Options.Discover (5 s) after that; a
	// partition that is no longer listed is read to its end all the same. An error leaves the last list as it was.
	Partitions(ctx context.Context) ([]Partition, error)

	// Open begins to read a partition. The reader is used by one goroutine. Errors as Reader.Read's.
	Open(ctx context.Context, partition string, from Start) (Reader, error)

	// Close frees what the source holds, after all its readers.
	Close() error
}

// Partition is a part of a source that has an order of its own: a room, a shard.
type Partition struct {
	// Name is unique within the source, for ever: [A-Za-z0-9_.:-]{1,128}.
	Name string
	// Parents are partitions that must have been read to their end, by the same sink, before this one is begun: those
	// that a shard was split or merged from. One that is neither listed nor has a cursor is taken as read.
	Parents []string
}

// Start says where a reader begins. The first of these that is set counts; the zero value is the oldest event kept.
type Start struct {
	After Position  // behind that position: the first event is the next one
	At    time.Time // with the first event that happened at that time or later; it may be newer than every event
}

// Reader reads one partition in order.
type Reader interface {
	// Read waits until there are events and returns at most max of them, the oldest first, each once. It returns early
	// with none when there is nothing to tell for a while, so that the relay can look around.
	//
	// Errors: ErrEnd, the partition is closed and everything in it has been returned (a shard that was split or
	// merged; a deleted room); *GapError, events were lost before they could be read, and the next Read goes on behind
	// the gap; the context's. Any other error means that the reader is of no use any more: the relay closes it, waits
	// with full jitter by the error's Class, and opens another behind the last event that it was given.
	Read(ctx context.Context, max int) ([]Event, error)

	// Close ends the reader; it does not wait for a Read under way to end by itself.
	Close() error
}

// Placed is what a Reader may be as well: it tells where it stands. A reader that was opened At a time is so remembered by
// its place before it has read anything, and a source that forgets by age can have a quiet partition's cursor move on.
type Placed interface {
	// Position is behind what was read; "" if that cannot be told yet. It is asked when a Read returned no events, and never
	// during one; one that differs from the last becomes the cursor if everything read before is done.
	Position() Position
}

// Measurer is what a Source may be as well: it tells how many events a cursor is behind. Without it, lag is told in
// seconds alone.
type Measurer interface {
	// Behind counts the events of the partition behind after.
	Behind(ctx context.Context, partition string, after Position) (int64, error)
}

// Retainer is what a Source may be as well: it keeps events for the slowest cursor, as far as its own bounds allow.
type Retainer interface {
	// Retain says that reader, a name, still needs everything behind after. It replaces what was said for that reader
	// before. It is called when a partition is taken and whenever its cursor has moved, at most once a second.
	Retain(ctx context.Context, partition, reader string, after Position) error
	// Release forgets the reader.
	Release(ctx context.Context, partition, reader string) error
}

// ErrEnd is Reader.Read's when a partition is closed and has been read.
var ErrEnd = errors.New("relay: the partition has ended")

// GapError reports that a source no longer had what followed a cursor.
type GapError struct {
	Partition string
	From      Position // the last position before the gap; empty: the beginning
	To        Position // the reader goes on behind it
	Lost      int64    // events; 0: nobody knows how many
	Cause     string   // as "the room's log was longer than log.max_bytes"
}

func (e *GapError) Error() string {
	lost := "events"
	if e.Lost > 0 {
		lost = fmt.Sprintf("%d events", e.Lost)
	}
	return fmt.Sprintf("relay: %s of %s after %q are lost, up to %q: %s", lost, e.Partition, e.From, e.To, e.Cause)
}
