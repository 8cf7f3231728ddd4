package redis

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

var (
	//go:embed room_prelude.lua
	roomPrelude string
	//go:embed room_step.lua
	roomStepSource string
	//go:embed room_ticket.lua
	roomTicketSource string
	//go:embed room_operate.lua
	roomOperateSource string
	//go:embed room_delete.lua
	roomDeleteSource string
	//go:embed room_trim.lua
	roomTrimSource string

	roomCallSource   = roomSource(roomPrelude, roomStepSource, roomTicketSource, roomOperateSource)
	roomCallScript   = rueidis.NewLuaScript(roomCallSource)
	roomDeleteScript = rueidis.NewLuaScript(roomSource(roomPrelude, roomDeleteSource))
	roomTrimScript   = rueidis.NewLuaScript(roomSource(roomPrelude, roomTrimSource))
	roomReadScript   = rueidis.NewLuaScript("return {redis.call('GET', KEYS[1]), redis.call('HGETALL', string.sub(KEYS[1], 1, -2) .. 'text'), redis.call('ZRANGE', string.sub(KEYS[1], 1, -2) .. 'held', 0, -1, 'WITHSCORES')}")
)

// roomMoves is how many tickets one call promotes, expires or abandons at most: well under 5 ms of the server's time.
const roomMoves = 150

// roomBase begins all keys of a room.
func roomBase(id string) string { return "usher:room:{" + id + "}:" }

// roomArgs are the arguments of roomCallScript; see room_prelude.lua.
type roomArgs struct {
	clock    int64 // µs; 0: the server's
	moves    int
	pause    time.Duration
	random   uint64
	root     roomRoot
	seedHash string
	seed     []byte
	plain    []*room.Command // enters that present no ticket
	rest     []*room.Command
}

func (a *roomArgs) list() []string {
	clock, entered := "", ""
	if a.clock != 0 {
		clock = strconv.FormatInt(a.clock, 10)
	}
	if a.root.n != 0 {
		entered = strconv.FormatUint(a.root.n, 10) + " " + a.root.seedHash
	}
	ids, reqs, keys := make([]byte, 0, 16*len(a.plain)), make([]byte, 0, 16*len(a.plain)), []byte(nil)
	for _, c := range a.plain {
		ids, reqs = append(ids, c.NewID[:]...), append(reqs, c.Request[:]...)
		if a.seed != nil {
			keys = binary.BigEndian.AppendUint64(keys, room.OrderKey(a.seed, c.NewID))
		}
	}
	list := []string{
		clock, strconv.Itoa(a.moves), strconv.FormatInt(a.pause.Microseconds(), 10), string(binary.BigEndian.AppendUint64(nil, a.random)),
		entered, a.root.root, a.seedHash, string(ids), string(reqs), string(keys),
	}
	for _, c := range a.rest {
		list = append(list, string(a.pack(c)))
	}
	return list
}

func appendDouble(b []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(b, math.Float64bits(v))
}

func appendRef(b []byte, r room.Ref) []byte {
	return append(appendDouble(b, float64(r.Seq)), r.ID[:]...)
}

// appendPresented writes a ticket that its holder has presented.
func appendPresented(b []byte, c *room.Command) []byte {
	admitted := byte(0)
	if c.Admitted {
		admitted = 1
	}
	return append(appendDouble(appendRef(b, c.Ref), float64(c.Issued)), admitted)
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// pack writes a command as room_operate.lua reads it.
func (a *roomArgs) pack(c *room.Command) []byte {
	if badCommand(c) != nil {
		return []byte{opBad}
	}
	b := []byte{byte(c.Op)}
	switch c.Op {
	case room.OpEnter:
		b = appendPresented(b, c)
		b = append(append(b, c.NewID[:]...), c.Request[:]...)
		if a.seed != nil {
			b = binary.BigEndian.AppendUint64(b, room.OrderKey(a.seed, c.NewID))
			b = append(b, a.seedHash...)
			b = binary.BigEndian.AppendUint64(b, room.OrderKey(a.seed, c.Ref.ID))
		}
	case room.OpStatus, room.OpClaim, room.OpRenew, room.OpLeave:
		b = appendPresented(b, c)
	case room.OpHeard:
		for _, r := range c.Refs {
			b = appendRef(b, r)
		}
	case room.OpConfigure:
		b = packConfigure(b, c)
	case room.OpState:
		b = append(b, roomStates[c.State])
		b = appendText(appendText(appendText(b, c.Message), string(c.Seed)), seedHash(c.Seed))
	case room.OpInstances:
		b = appendDouble(b, float64(c.Instances))
	}
	return b
}

// opBad is the op of a command that is refused whatever the state is: as everything, it is told at what time.
const opBad = 255

// badCommand says what is wrong with a command by itself.
func badCommand(cmd *room.Command) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{room.ErrBadCommand}, args...)...)
	}
	switch cmd.Op {
	case room.OpState:
		if _, ok := roomStates[cmd.State]; !ok {
			return bad("state %q; use open, paused or closed", cmd.State)
		}
		if len(cmd.Message) > 1000 {
			return bad("message of %d bytes; use up to 1000", len(cmd.Message))
		}
	case room.OpInstances:
		if cmd.Instances < 0 {
			return bad("%d instances", cmd.Instances)
		}
	case room.OpHeard:
		if len(cmd.Refs) > room.MaxMoves {
			return bad("%d signs of life; send up to %d", len(cmd.Refs), room.MaxMoves)
		}
	}
	if cmd.Op > room.OpInstances {
		return bad("op %d", cmd.Op)
	}
	return nil
}

var (
	roomStates = map[string]byte{room.StateOpen: 0, room.StatePaused: 1, room.StateClosed: 2}
	roomPhases = []room.Phase{room.PhaseBefore, room.PhasePrequeue, room.PhaseOpen, room.PhaseClosed}
	roomOrders = []room.Order{room.FIFO, room.Random, room.Passthrough, room.Reject}
)

func stateName(code byte) string {
	for name, c := range roomStates {
		if c == code {
			return name
		}
	}
	return ""
}

func seedHash(seed []byte) string {
	h := sha256.Sum256(seed)
	return hex.EncodeToString(h[:])
}

// upMicros rounds a duration up to a µs, the script's unit.
func upMicros(d room.Duration) float64 {
	return float64((time.Duration(d) + time.Microsecond - 1) / time.Microsecond)
}

func timeMicros(t room.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro())
}

func packConfigure(b []byte, c *room.Command) []byte {
	f := c.Config
	order, hold := 0, 0.0
	for i, o := range roomOrders {
		if o == f.Queue.Order {
			order = i
		}
	}
	if f.Session.Hold {
		hold = 1
	}
	grace := (time.Duration(f.Queue.Grace) + 100*time.Millisecond - 1) / (100 * time.Millisecond)
	for _, v := range []float64{
		float64(c.IfRevision), float64(f.Capacity.Active), float64(f.Capacity.PerInstance), float64(f.Capacity.RatePerMinute),
		upMicros(f.Session.Idle), upMicros(f.Session.Max), upMicros(f.Session.Claim), hold, float64(grace), float64(f.Queue.MaxWaiting),
		float64(order), timeMicros(f.Schedule.OpensAt), upMicros(f.Schedule.Prequeue), timeMicros(f.Schedule.ClosesAt),
	} {
		b = appendDouble(b, v)
	}
	config, err := json.Marshal(f)
	if err != nil { // a plain struct of strings and numbers: cannot happen
		panic(err)
	}
	b = appendText(appendText(b, c.Digest), string(config))
	return appendText(appendText(b, string(c.Seed)), seedHash(c.Seed))
}

// roomReply is what roomCallScript answers.
type roomReply struct {
	status string
	at     int64
	cursor room.Cursor
	more   bool
	wake   time.Duration
	plain  []room.Result // of the first of roomArgs.plain
	rest   []room.Result // of the first of roomArgs.rest
	extra  string
}

func readRoomReply(res rueidis.RedisResult, plain []*room.Command) (r roomReply, err error) {
	msgs, err := res.ToArray()
	if err != nil {
		return r, err
	}
	bad := func(what string) (roomReply, error) {
		return r, fmt.Errorf("%w: redis: a room script's answer is unreadable: %s", room.ErrUnknown, what)
	}
	if len(msgs) != 9 {
		return bad(fmt.Sprintf("%d values", len(msgs)))
	}
	num := func(i int) (n int64) {
		v, nerr := msgs[i].AsInt64()
		if nerr != nil && err == nil {
			err = nerr
		}
		return v
	}
	r.status, _ = msgs[0].ToString()
	r.at, r.cursor, r.more, r.wake = num(1), room.Cursor{Epoch: uint64(num(2)), N: uint64(num(3))}, num(4) == 1, time.Duration(num(5))*time.Microsecond
	if err != nil {
		return bad(err.Error())
	}
	text, _ := msgs[6].ToString()
	r.extra, _ = msgs[8].ToString()
	switch {
	case text == "":
	case text[0] == 'F', text[0] == 'P': // all of them wait; before an opening nobody has a position
		if len(text) != 1+8+8+1+8 || int(roomDouble(text[9:])) != len(plain) {
			return bad("a run")
		}
		first, random, last := uint64(roomDouble(text[1:])), text[17] == 1, uint64(roomDouble(text[18:]))
		r.plain = make([]room.Result, len(plain))
		for i := range r.plain {
			v := room.View{Ref: room.Ref{Seq: first + uint64(i), ID: plain[i].NewID}, State: room.Waiting, Created: true}
			if text[0] == 'F' {
				v.Pos, v.Random = v.Seq, random
			}
			r.plain[i] = room.Result{At: r.at, Cursor: room.Cursor{Epoch: r.cursor.Epoch, N: last}, View: v}
		}
	default:
		for text = text[1:]; len(text) >= roomViewSize; text = text[roomViewSize:] {
			r.plain = append(r.plain, r.view(text))
		}
	}
	rest, err := msgs[7].ToArray()
	if err != nil {
		return bad(err.Error())
	}
	for _, m := range rest {
		text, _ := m.ToString()
		if len(text) != roomViewSize {
			return bad("a view")
		}
		r.rest = append(r.rest, r.view(text))
	}
	return r, nil
}

func roomDouble(s string) float64 {
	var b [8]byte
	copy(b[:], s)
	return math.Float64frombits(binary.BigEndian.Uint64(b[:]))
}

const roomViewSize = 4 + 6*8 + 16

var roomErrors = []error{
	nil, room.ErrClosed, room.ErrNotOpen, room.ErrFull, room.ErrSpent, room.ErrNoTicket, room.ErrEnded, room.ErrNotAdmitted, room.ErrRevision,
	room.ErrIDTaken, fmt.Errorf("%w: an enter needs a new id, a scheduled opening a seed of 32 bytes", room.ErrBadCommand), room.ErrNotFound,
}

// view reads what room_ticket.lua's view packs.
func (r *roomReply) view(s string) room.Result {
	micros := func(at int) time.Duration { return time.Duration(roomDouble(s[at:])) * time.Microsecond }
	v := room.View{
		State: room.TicketState(s[1]), Random: s[2]&1 != 0, Created: s[2]&2 != 0, Claimed: s[2]&4 != 0, Reason: room.Reason(s[3]),
		Pos: uint64(roomDouble(s[12:])),
	}
	v.Seq = uint64(roomDouble(s[4:]))
	copy(v.ID[:], s[52:])
	if v.State == room.Active {
		v.IdleEnd, v.FinalEnd, v.TokenEnd = micros(20), micros(28), micros(36)
	}
	res := room.Result{At: r.at, Cursor: room.Cursor{Epoch: r.cursor.Epoch, N: uint64(roomDouble(s[44:]))}, View: v}
	if int(s[0]) < len(roomErrors) {
		res.Err = roomErrors[s[0]]
	} else {
		res.Err = room.ErrBadCommand
	}
	return res
}
