package room

import (
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ID is a ticket's public id. It gives no right to anything.
type ID [16]byte

var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// String is 26 characters of a-z and 2-7.
func (id ID) String() string { return idText.EncodeToString(id[:]) }

// ParseID reads what ID.String writes.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 26 {
		return id, fmt.Errorf("ticket id %.40q is not 26 characters long", s)
	}
	b, err := idText.DecodeString(s)
	if err != nil {
		return id, fmt.Errorf("ticket id %q: only a-z and 2-7 are allowed", s)
	}
	copy(id[:], b)
	return id, nil
}

// Ref names a ticket to the machine: its seq finds it, its id proves that it is the same one.
type Ref struct {
	Seq uint64
	ID  ID
}

// EventType says what happened.
type EventType uint8

const (
	Entered EventType = iota + 1
	Admitted
	Claimed
	Left
	Expired
	Abandoned
	LimitChanged
	StateChanged
)

var eventNames = [...]string{"", "entered", "admitted", "claimed", "left", "expired", "abandoned", "limit", "state"}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event(%d)", uint8(t))
}

// Reason says why a ticket ended.
type Reason uint8

const (
	NoReason Reason = iota
	ReasonLeft
	ReasonClaim     // nobody used the admission in time
	ReasonIdle      // the session was not renewed in time
	ReasonMax       // the session had its time
	ReasonAbandoned // the waiter was not heard from for the grace
	ReasonGone      // ended so long ago that nobody remembers why
)

var reasonNames = [...]string{"", "left", "claim", "idle", "max", "abandoned", "gone"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Event is one change of a room, named by (room, Epoch, N). The machine's state is what its
// events, applied in order, make of the empty room; presence and renewals are state only.
type Event struct {
	Epoch uint64
	N     uint64        // 1, 2, 3, … within the epoch
	At    int64         // decision time, µs since 1970, never running back
	Room  time.Duration // room time
	Type  EventType

	Ref                     // of the ticket; zero for limit and state
	Pos       uint64        // of the ticket; 0 while unknown (prequeue)
	Prequeue  bool          // entered: before the opening
	WasActive bool          // left, expired: the ticket held a session
	Reason    Reason        // left, expired, abandoned
	Key       uint64        // entered in the prequeue: order key; secret until the opening
	Request   [16]byte      // entered: HMAC of the request id, or zero; secret
	Hold      time.Duration // left, expired: room time until which the slot stays taken; 0: free at once

	Limit *LimitData // limit
	State *StateData // state
}

// LimitData is a change of configuration or of the number of instances. A limit event
// always carries the whole configuration in force.
type LimitData struct {
	Config    Config
	Revision  uint64
	Digest    string // of the room as the configuration file said it last
	Instances int64
	Limit     int64
}

// StateData is a change of the room's state. All fields are those in force after it.
type StateData struct {
	State   string  `json:"state"`  // what the operator said: open | paused | closed
	Phase   Phase   `json:"phase"`  // what the schedule says
	Closed  bool    `json:"closed"` // closes_at has been obeyed or overruled
	Message string  `json:"message"`
	Opening Opening `json:"opening"`
	Seed    []byte  `json:"seed,omitempty"` // secret until the opening
}

// Cursor is a reader's place in a room's log: everything up to and including (Epoch, N) is read.
type Cursor struct {
	Epoch, N uint64
}

// Before says whether c has come less far than d.
func (c Cursor) Before(d Cursor) bool {
	return c.Epoch < d.Epoch || (c.Epoch == d.Epoch && c.N < d.N)
}

func (c Cursor) String() string { return fmt.Sprintf("%d.%d", c.Epoch, c.N) }

// ParseCursor reads "epoch.n".
func ParseCursor(s string) (c Cursor, err error) {
	var rest string
	if n, _ := fmt.Sscanf(s, "%d.%d%s", &c.Epoch, &c.N, &rest); n != 2 {
		return Cursor{}, fmt.Errorf("%.40q is not a log position; write it like 1.42", s)
	}
	return c, nil
}

// PublicEvent is an event as API and sinks show it. It holds no secret.
type PublicEvent struct {
	Room     string         `json:"room"`
	Epoch    uint64         `json:"epoch"`
	N        uint64         `json:"n"`
	At       string         `json:"at"`
	Type     string         `json:"type"`
	TicketID string         `json:"ticket_id,omitempty"`
	Data     map[string]any `json:"data"`
}

// Public returns e without what must stay secret.
func (e *Event) Public(room string) PublicEvent {
	p := PublicEvent{Room: room, Epoch: e.Epoch, N: e.N, At: FormatAt(e.At), Type: e.Type.String(), Data: map[string]any{}}
	if e.Seq != 0 {
		p.TicketID = e.ID.String()
		p.Data["seq"] = e.Seq
		if e.Pos != 0 {
			p.Data["pos"] = e.Pos
		}
	}
	switch e.Type {
	case Entered:
		if e.Prequeue {
			p.Data["prequeue"] = true
		}
	case Left, Expired, Abandoned:
		p.Data["reason"] = e.Reason.String()
		p.Data["from"] = "waiting"
		if e.WasActive {
			p.Data["from"] = "admitted"
		}
	case LimitChanged:
		l := e.Limit
		p.Data["limit"] = publicLimit(l.Limit)
		p.Data["active"] = l.Config.Capacity.Active
		p.Data["per_instance"] = l.Config.Capacity.PerInstance
		p.Data["rate_per_minute"] = l.Config.Capacity.RatePerMinute
		p.Data["instances"] = l.Instances
		p.Data["order"] = l.Config.Queue.Order
		p.Data["revision"] = l.Revision
	case StateChanged:
		s := e.State
		p.Data["state"] = EffectiveState(s.State, s.Phase)
		p.Data["phase"] = s.Phase
		p.Data["message"] = s.Message
		p.Data["opening"] = s.Opening
	}
	return p
}

// publicLimit is null for a room without a limit on its sessions.
func publicLimit(l int64) any {
	if l == Unlimited {
		return nil
	}
	return l
}

// FormatAt writes a decision time (µs since 1970) as RFC 3339 in UTC with milliseconds.
func FormatAt(us int64) string { return time.UnixMicro(us).UTC().Format("2006-01-02T15:04:05.000Z") }

// eventLayout is the first byte of every encoded event; a foreign one is refused.
const eventLayout = 1

// ErrLayout reports an event or snapshot written by another version of the layout, or damaged.
var ErrLayout = errors.New("room: unreadable record")

const (
	flagPrequeue = 1 << iota
	flagActive
	flagRequest
	flagKey
	flagData
	flagHold
)

// Append appends e's binary form to b.
func (e *Event) Append(b []byte) []byte {
	var flags byte
	if e.Prequeue {
		flags |= flagPrequeue
	}
	if e.WasActive {
		flags |= flagActive
	}
	if e.Request != [16]byte{} {
		flags |= flagRequest
	}
	if e.Key != 0 {
		flags |= flagKey
	}
	if e.Limit != nil || e.State != nil {
		flags |= flagData
	}
	if e.Hold != 0 {
		flags |= flagHold
	}
	b = append(b, eventLayout, byte(e.Type), flags, byte(e.Reason))
	b = binary.AppendUvarint(b, e.Epoch)
	b = binary.AppendUvarint(b, e.N)
	b = binary.AppendUvarint(b, uint64(e.At))
	b = binary.AppendUvarint(b, uint64(e.Room))
	b = binary.AppendUvarint(b, e.Seq)
	if e.Seq != 0 {
		b = append(b, e.ID[:]...)
		b = binary.AppendUvarint(b, e.Pos)
	}
	if flags&flagRequest != 0 {
		b = append(b, e.Request[:]...)
	}
	if flags&flagKey != 0 {
		b = binary.BigEndian.AppendUint64(b, e.Key)
	}
	if flags&flagHold != 0 {
		b = binary.AppendUvarint(b, uint64(e.Hold))
	}
	if flags&flagData != 0 {
		var data []byte
		var err error
		if e.Limit != nil {
			data, err = json.Marshal(e.Limit)
		} else {
			data, err = json.Marshal(e.State)
		}
		if err != nil { // plain structs of strings and numbers: cannot happen
			panic(err)
		}
		b = binary.AppendUvarint(b, uint64(len(data)))
		b = append(b, data...)
	}
	return b
}

// reader takes values off a byte slice; after a failure it only yields zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return make([]byte, min(n, 16))
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// DecodeEvent reads one event from b and returns what follows it.
func DecodeEvent(b []byte) (e Event, rest []byte, err error) {
	if len(b) < 4 {
		return e, nil, fmt.Errorf("%w: event of %d bytes", ErrLayout, len(b))
	}
	if b[0] != eventLayout {
		return e, nil, fmt.Errorf("%w: event layout %d, this build reads %d; run the version of usher that wrote it", ErrLayout, b[0], eventLayout)
	}
	flags := b[2]
	e.Type, e.Reason = EventType(b[1]), Reason(b[3])
	e.Prequeue, e.WasActive = flags&flagPrequeue != 0, flags&flagActive != 0
	r := reader{b: b[4:]}
	e.Epoch, e.N, e.At, e.Room, e.Seq = r.uvarint(), r.uvarint(), int64(r.uvarint()), time.Duration(r.uvarint()), r.uvarint()
	if e.Seq != 0 {
		copy(e.ID[:], r.bytes(16))
		e.Pos = r.uvarint()
	}
	if flags&flagRequest != 0 {
		copy(e.Request[:], r.bytes(16))
	}
	if flags&flagKey != 0 {
		e.Key = binary.BigEndian.Uint64(r.bytes(8))
	}
	if flags&flagHold != 0 {
		e.Hold = time.Duration(r.uvarint())
	}
	if flags&flagData != 0 {
		data := r.bytes(r.uvarint())
		switch {
		case r.bad:
		case e.Type == LimitChanged:
			e.Limit = new(LimitData)
			err = json.Unmarshal(data, e.Limit)
		case e.Type == StateChanged:
			e.State = new(StateData)
			err = json.Unmarshal(data, e.State)
		}
	}
	if r.bad || err != nil || e.Type == 0 || e.Type > StateChanged ||
		(e.Type == LimitChanged) != (e.Limit != nil) || (e.Type == StateChanged) != (e.State != nil) || (e.Type <= Abandoned) != (e.Seq != 0) {
		return Event{}, nil, fmt.Errorf("%w: damaged event %s", ErrLayout, hex.EncodeToString(b[:min(len(b), 24)]))
	}
	return e, r.b, nil
}
