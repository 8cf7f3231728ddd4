package keeper

import (
	"context"
	"time"
)

// Sink stores messages. Implementations are in the packages below keeper; sinktest holds each of them to what is said here.
// Safe for concurrent use: batches of one connection come one after the other, those of others meanwhile.
type Sink interface {
	// Store stores each message once: one whose (connection, seq) is there already is left as it is. A batch of a fence
	// below the highest that the connection's batches had is not stored, and its answer is false; a batch without
	// messages makes the fence known. The answers are in the order of batches.
	//
	// After an error some may have been stored; the same is asked again, alone or beside others. A sink that can tell that
	// one message will never be stored says so in the error's text: the connection is held up until somebody acts.
	Store(ctx context.Context, batches []Batch) ([]bool, error)
}

// Batch are messages of one connection, in the order in which they came.
type Batch struct {
	Connection string
	Fence      uint64
	Messages   []Message
}

// Message is what an upstream sent.
type Message struct {
	Seq    int64     // its number, greater than that of the one before
	At     time.Time // when it was read, by this worker's clock
	Binary bool      // it came as a binary message
	Data   []byte    // nobody changes it
}
