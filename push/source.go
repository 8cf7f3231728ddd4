package push

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ID is a ticket's public id.
type ID [16]byte

// Ticket is whom a connection belongs to.
type Ticket struct {
	Seq  uint64
	ID   ID
	Name string // the id as topics show it
}

// Cursor is a position of a room's log: everything up to and including it is known.
type Cursor struct{ Epoch, N uint64 }

// Before says whether c has come less far than d.
func (c Cursor) Before(d Cursor) bool {
	return c.Epoch < d.Epoch || (c.Epoch == d.Epoch && c.N < d.N)
}

func (c Cursor) String() string { return string(c.append(nil)) }

func (c Cursor) append(b []byte) []byte {
	b = strconv.AppendUint(b, c.Epoch, 10)
	b = append(b, '.')
	return strconv.AppendUint(b, c.N, 10)
}

// ParseCursor reads "epoch.n".
func ParseCursor(s string) (c Cursor, err error) {
	epoch, n, ok := strings.Cut(s, ".")
	if ok {
		if c.Epoch, err = strconv.ParseUint(epoch, 10, 64); err == nil {
			c.N, err = strconv.ParseUint(n, 10, 64)
		}
	}
	if !ok || err != nil {
		return Cursor{}, fmt.Errorf("%.40q is not a log position; write it like 1.42", s)
	}
	return c, nil
}

// State is what has become of a ticket.
type State uint8

const (
	Waiting State = iota + 1
	Admitted
	Ended
)

// Spot is what the node's own line needs to tell a place.
type Spot struct {
	Pos    uint64
	Random bool
}

// Standing is what has become of a ticket, as the store says.
type Standing struct {
	State     State
	Spot      Spot
	Admission []byte // admitted: the JSON document of the admission
	Reason    string // ended: claim, idle, max, abandoned; "left" is told to nobody
	At        int64  // decision time, µs since 1970
}

// Rank is a waiter's place.
type Rank struct {
	Place   int64 // 0: none to tell
	Waiting int64
	ETA     *ETA // nil: no basis
	At      int64
}

// ETA is the range of a wait, in seconds.
type ETA struct {
	LowS, HighS int64
	Basis       string
}

// Stats is what everybody may know of a room.
type Stats struct {
	Waiting, Active int64
	State, Message  string
	At              int64
}

// Source is what the hub asks of one room. It is safe for concurrent use.
type Source interface {
	// Look asks what has become of a ticket, as of now; it may ask the store. An error is an unknown: the hub asks
	// again.
	Look(ctx context.Context, t Ticket) (Standing, error)
	// Rank tells a waiter's place by what the node knows. It must not wait: the hub calls it for each visitor.
	Rank(s Spot) Rank
	// Stats is asked once a second for everybody. It must not wait.
	Stats() Stats
	// Heard notes that a waiter is there. It must not wait.
	Heard(t Ticket)
	// Beat is how often a waiter must be heard, and a quiet connection be written to.
	Beat() time.Duration
}
