package relay

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Event is one thing that happened, on its way from a source to a sink.
type Event struct {
	// ID names the event for ever: whoever is sent it twice knows by it. An event of a room's log is named by
	// RoomID; a source that carries usher's events on (Kinesis, JetStream, a Redis stream) gives them the ID that they
	// came with, and names foreign records in its own way, the same each time that it reads them.
	ID string
	// Key is what order is kept by: the ticket's id. Events of one key reach the sink in the order of the source. It is
	// never empty: an event about nothing in particular has the name of its room, shard or stream.
	Key string
	// Type says what happened: admitted, left, …, gap; empty for foreign records.
	Type string
	// At is when it happened, by the source's clock. Lag is measured from it.
	At time.Time
	// Payload is what the sink delivers, as the source had it: of a room's log one JSON object (room.PublicEvent).
	// Nobody changes the bytes; a handler that wants others sets another slice.
	Payload []byte
	// Position is where the event stands in its partition. A reader that is opened behind it goes on with the next one.
	Position Position
	// Late says that the event comes back from the dead letters: later ones of its key may have been there before it.
	Late bool
	// Attempt counts how often the event has been tried before, for sinks that tell their receivers.
	Attempt int
}

// size is what an event is counted as in bounds on memory: more than its bytes.
func (e *Event) size() int {
	return len(e.ID) + len(e.Key) + len(e.Type) + len(e.Payload) + len(e.Position) + 160
}

// Position is a place in one partition of a source, in the source's own words: "1.42" for a room's log, a sequence
// number for Kinesis, its own birth and a number for JetStream, "1700000000000-0" for a Redis stream. Empty: before everything.
type Position string

// RoomID names event n of a room's log in an epoch: "premiere/1.42".
func RoomID(room string, epoch, n uint64) string {
	return room + "/" + strconv.FormatUint(epoch, 10) + "." + strconv.FormatUint(n, 10)
}

// ParseRoomID reads what RoomID writes; ok is false for IDs of another kind.
func ParseRoomID(id string) (room string, epoch, n uint64, ok bool) {
	room, at, found := strings.Cut(id, "/")
	e, k, dot := strings.Cut(at, ".")
	epoch, err1 := strconv.ParseUint(e, 10, 64)
	n, err2 := strconv.ParseUint(k, 10, 64)
	if !found || !dot || room == "" || err1 != nil || err2 != nil || RoomID(room, epoch, n) != id {
		return "", 0, 0, false
	}
	return room, epoch, n, true
}

// Envelope is what sinks write that have no fields of their own for what stands beside a payload: JSON lines, SQS,
// dead letters. Its payload is JSON as it is, and base64 in payload_base64 if it is not JSON.
type Envelope struct {
	ID       string          `json:"id"`
	Key      string          `json:"key"`
	Type     string          `json:"type,omitempty"`
	At       time.Time       `json:"at"`
	Late     bool            `json:"late,omitempty"`
	Position Position        `json:"position,omitempty"`
	Payload  json.RawMessage `json:"payload,omitempty"`
	Binary   []byte          `json:"payload_base64,omitempty"`
}

// Envelope wraps e.
func (e *Event) Envelope() Envelope {
	env := Envelope{ID: e.ID, Key: e.Key, Type: e.Type, At: e.At.UTC(), Late: e.Late, Position: e.Position}
	if json.Valid(e.Payload) {
		env.Payload = e.Payload
	} else {
		env.Binary = e.Payload
	}
	return env
}

// Event unwraps an envelope.
func (env Envelope) Event() Event {
	e := Event{ID: env.ID, Key: env.Key, Type: env.Type, At: env.At, Late: env.Late, Position: env.Position, Payload: env.Payload}
	if env.Binary != nil {
		e.Payload = env.Binary
	}
	return e
}

// ReadEnvelope reads one JSON envelope; it must have an id and a key.
func ReadEnvelope(b []byte) (Event, error) {
	var env Envelope
	if err := json.Unmarshal(b, &env); err != nil {
		return Event{}, fmt.Errorf("no envelope of usher's: %w", err)
	}
	if env.ID == "" || env.Key == "" {
		return Event{}, fmt.Errorf("no envelope of usher's: id and key are needed")
	}
	return env.Event(), nil
}
