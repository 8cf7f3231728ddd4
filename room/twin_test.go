package room

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// twin is the room as one would first think of it: a list of tickets that is read from end to
// end for every question. It is written from the design, not from the machine.
type twin struct {
	cfg       Config
	rev       uint64
	digest    string
	instances int64
	state     string
	phase     Phase
	closed    bool
	message   string
	seed      []byte
	tickets   []*twinTicket
	now       time.Duration
	clock     int64
	at        int64
	orders    []orderFrom
	admits    []time.Duration // room times of admissions that the rate counted
	next      time.Duration   // GCRA
	held      []time.Duration
	floor     time.Duration // of the last recovery
	firstPre  int           // index of the first ticket of the coming draw, -1: none
}

type twinTicket struct {
	ref           Ref
	pos           uint64
	request       [16]byte
	state         TicketState
	reason        Reason
	seen          time.Duration // quantised to seenTick
	start         time.Duration
	renewed       time.Duration
	claimed       bool
	ended         time.Duration
	token         time.Duration // a token signed before idle or max were shortened may last until then
	wasAdmitted   int
	forgotten     bool
	beforeOpening bool
}

func quantum(d time.Duration) time.Duration { return d / seenTick * seenTick }

func (w *twin) find(ref Ref) *twinTicket {
	for _, t := range w.tickets {
		if t.ref == ref && !t.forgotten {
			return t
		}
	}
	return nil
}

func (w *twin) waiting() (list []*twinTicket) {
	for _, t := range w.tickets {
		if t.state == Waiting {
			list = append(list, t)
		}
	}
	return list
}

func (w *twin) active() (n int64) {
	for _, t := range w.tickets {
		if t.state == Active {
			n++
		}
	}
	return n
}

func (w *twin) used() int64 {
	n := w.active()
	for _, h := range w.held {
		if h > w.now {
			n++
		}
	}
	return n
}

func (w *twin) rateAllows() bool {
	r := w.cfg.Capacity.RatePerMinute
	if r == 0 {
		return true
	}
	b := (r + 59) / 60
	return w.next-time.Duration(b-1)*w.interval() <= w.now
}

func (w *twin) interval() time.Duration {
	r := w.cfg.Capacity.RatePerMinute
	b := (r + 59) / 60
	return (time.Minute + time.Duration(r-b+1) - 1) / time.Duration(r-b+1)
}

func (w *twin) mayAdmit() bool {
	if w.state == StatePaused || w.phase == PhaseBefore || w.phase == PhasePrequeue {
		return false
	}
	if w.cfg.Queue.Order == Passthrough {
		return true
	}
	return w.used() < w.cfg.Limit(w.instances) && w.rateAllows()
}

func (w *twin) orderOf(pos uint64) Order {
	o := FIFO
	for _, s := range w.orders {
		if s.pos <= pos {
			o = s.order
		}
	}
	return o
}

// drawn are the living whose turn it may be: one in fifo, several where the order is random.
func (w *twin) drawn() (list []*twinTicket) {
	var head *twinTicket
	for _, t := range w.waiting() {
		if t.pos != 0 && (head == nil || t.pos < head.pos) {
			head = t
		}
	}
	if head == nil {
		return nil
	}
	if w.orderOf(head.pos) != Random {
		return []*twinTicket{head}
	}
	end := ^uint64(0)
	for _, s := range w.orders {
		if s.pos > head.pos && s.order != Random {
			end = min(end, s.pos)
		}
	}
	for _, t := range w.waiting() {
		if t.pos != 0 && t.pos < end {
			list = append(list, t)
		}
	}
	return list
}

func (w *twin) deadline(t *twinTicket) (time.Duration, Reason) {
	final := t.start + time.Duration(w.cfg.Session.Max)
	end, why := t.renewed+time.Duration(w.cfg.Session.Idle), ReasonIdle
	if c := time.Duration(w.cfg.Session.Claim); c > 0 && !t.claimed {
		end, why = max(t.start, w.floor)+c, ReasonClaim
	}
	if final <= end {
		return final, ReasonMax
	}
	return end, why
}

// silent says whether a waiter's grace is over.
func (w *twin) silent(t *twinTicket) bool {
	grace := time.Duration(w.cfg.Queue.Grace)
	return t.state == Waiting && quantum(w.now)-t.seen > grace && quantum(w.now)-w.floor > grace
}

// lapse ends a session at the moment somebody asks for it, if its time is up.
func (w *twin) lapse(t *twinTicket) {
	if t != nil && t.state == Active {
		if end, why := w.deadline(t); end <= w.now {
			w.end(t, why)
		}
	}
}

// crash is what a restart leaves: nothing that is not in the log, and a full grace, claim and
// idle for everybody.
func (w *twin) crash(last *Event) {
	w.now, w.at, w.clock = last.Room, last.At, 0
	w.floor = (w.now + seenTick - 1) / seenTick * seenTick
	for _, t := range w.tickets {
		t.forgotten = false
		t.seen, t.renewed = min(t.seen, w.floor), w.now
	}
}

func (w *twin) end(t *twinTicket, why Reason) {
	if t.state == Active && w.cfg.Session.Hold {
		token := min(t.renewed+time.Duration(w.cfg.Session.Idle), t.start+time.Duration(w.cfg.Session.Max))
		w.held = append(w.held, max(token, t.token)+Leeway)
	}
	t.state, t.reason, t.ended = Ended, why, w.now
}

func (w *twin) wantPhase() Phase {
	s := w.cfg.Schedule
	switch {
	case !s.ClosesAt.IsZero() && w.at >= s.ClosesAt.UnixMicro():
		return PhaseClosed
	case s.OpensAt.IsZero() || w.at >= s.OpensAt.UnixMicro():
		return PhaseOpen
	case w.at >= s.OpensAt.Add(-time.Duration(s.Prequeue)).UnixMicro():
		return PhasePrequeue
	}
	return PhaseBefore
}

// setPhase holds the draw when the prequeue ends.
func (w *twin) setPhase(p Phase, seed []byte) {
	w.phase = p
	if p == PhaseBefore || p == PhasePrequeue {
		if w.seed == nil {
			w.seed = seed
		}
		return
	}
	if w.firstPre >= 0 {
		pre := w.tickets[w.firstPre:]
		ids := make([]ID, len(pre))
		for i, t := range pre {
			ids[i] = t.ref.ID
		}
		first := pre[0].ref.Seq
		_, order := Draw(w.seed, first, ids)
		for _, t := range pre {
			if t.state == Waiting {
				t.pos = first + uint64(slices.Index(order, t.ref.ID))
			}
		}
		w.firstPre = -1
	}
	w.seed = nil
}

// step obeys a command and returns what the machine should say, given whom the machine
// picked, to be admitted or skipped (for random draws only).
func (w *twin) step(cmd *Command, clock int64, picks []Ref) (v View, admittedNow []Ref, err error) {
	if w.clock != 0 {
		w.now += min(max(time.Duration(clock-w.clock)*time.Microsecond, 0), 2*time.Second)
	}
	w.clock, w.at = clock, max(w.at, clock)
	if s := w.cfg.Schedule; !s.OpensAt.IsZero() || !s.ClosesAt.IsZero() {
		if want := w.wantPhase(); want != w.phase && !(want == PhaseClosed && w.closed) &&
			(w.phase == PhaseBefore || (w.phase == PhasePrequeue && want != PhaseBefore) || (w.phase == PhaseOpen && want == PhaseClosed)) {
			w.closed = w.closed || want == PhaseClosed
			w.setPhase(want, nil)
		}
	}
	v, err = w.obey(cmd)
	for n := 0; w.mayAdmit(); n++ {
		set := w.drawn()
		if len(set) == 0 {
			break
		}
		t := set[0]
		if len(set) > 1 {
			if n == len(picks) {
				return v, nil, fmt.Errorf("twin: one of %d should have been admitted, nobody was", len(set))
			}
			want := picks[n]
			i := slices.IndexFunc(set, func(t *twinTicket) bool { return t.ref == want })
			if i < 0 {
				return v, nil, fmt.Errorf("twin: %v was not in the draw", want)
			}
			t = set[i]
		}
		if w.silent(t) { // no slot for her
			w.end(t, ReasonAbandoned)
			continue
		}
		t.state, t.start, t.renewed = Active, w.now, w.now
		t.wasAdmitted++
		admittedNow = append(admittedNow, t.ref)
		if w.cfg.Queue.Order != Passthrough && w.cfg.Capacity.RatePerMinute > 0 {
			w.next = max(w.next, w.now) + w.interval()
			w.admits = append(w.admits, w.now)
		}
		if v.Ref == t.ref && v.Created {
			v.State = Active
		}
	}
	return v, admittedNow, err
}

func (w *twin) obey(cmd *Command) (View, error) {
	t := w.find(cmd.Ref)
	switch cmd.Op {
	case OpEnter, OpStatus, OpClaim, OpRenew, OpLeave:
		w.lapse(t)
	}
	see := func(t *twinTicket) View { return View{Ref: t.ref, State: t.state, Reason: t.reason} }
	switch cmd.Op {
	case OpTick:
		for _, t := range w.tickets {
			if t.state == Active {
				if end, why := w.deadline(t); end <= w.now {
					w.end(t, why)
				}
			}
		}
		for _, t := range w.tickets {
			if w.silent(t) {
				w.end(t, ReasonAbandoned)
			}
			if t.state == Ended && t.ended+10*time.Minute <= w.now {
				t.forgotten = true
			}
		}
	case OpEnter:
		if t != nil && t.state != Ended {
			t.seen = quantum(w.now)
			return see(t), nil
		}
		if cmd.Request != [16]byte{} {
			for _, t := range slices.Backward(w.tickets) { // an older one of that request is forgotten sooner
				if t.request == cmd.Request && !t.forgotten {
					w.lapse(t)
					if t.state == Ended {
						return see(t), ErrSpent
					}
					t.seen = quantum(w.now)
					return see(t), nil
				}
			}
		}
		switch {
		case w.state == StateClosed || w.phase == PhaseClosed:
			return View{}, ErrClosed
		case w.phase == PhaseBefore:
			return View{}, ErrNotOpen
		}
		pre := w.phase == PhasePrequeue
		n := int64(len(w.waiting()))
		if (n > 0 || !w.mayAdmit()) && (n >= w.cfg.Queue.MaxWaiting || (w.cfg.Queue.Order == Reject && !pre)) {
			return View{}, ErrFull
		}
		t := &twinTicket{ref: Ref{uint64(len(w.tickets)) + 1, cmd.NewID}, request: cmd.Request, state: Waiting, seen: quantum(w.now)}
		if pre {
			if t.beforeOpening = true; w.firstPre < 0 {
				w.firstPre = len(w.tickets)
			}
		} else {
			t.pos = t.ref.Seq
		}
		w.tickets = append(w.tickets, t)
		v := see(t)
		v.Created = true
		return v, nil
	case OpStatus, OpClaim, OpRenew, OpLeave:
		switch {
		case t == nil && (cmd.Ref.Seq == 0 || cmd.Ref.Seq > uint64(len(w.tickets))):
			return View{Ref: cmd.Ref}, ErrNoTicket
		case t == nil:
			if cmd.Op == OpLeave {
				return View{Ref: cmd.Ref, State: Ended, Reason: ReasonGone}, nil
			}
			return View{Ref: cmd.Ref, State: Ended, Reason: ReasonGone}, ErrEnded
		case t.state == Ended:
			if cmd.Op == OpLeave {
				return see(t), nil
			}
			return see(t), ErrEnded
		}
		switch cmd.Op {
		case OpLeave:
			w.end(t, ReasonLeft)
			return see(t), nil
		case OpClaim, OpRenew:
			if t.state == Active {
				t.renewed, t.claimed = w.now, true
				return see(t), nil
			}
			t.seen = quantum(w.now)
			return see(t), ErrNotAdmitted
		}
		if t.state == Waiting {
			t.seen = quantum(w.now)
		}
		return see(t), nil
	case OpHeard:
		for _, ref := range cmd.Refs {
			if t := w.find(ref); t != nil && t.state == Waiting {
				t.seen = quantum(w.now)
			}
		}
	case OpConfigure:
		if cmd.Digest != "" && cmd.Digest == w.digest {
			return View{}, nil
		}
		if cmd.IfRevision != 0 && cmd.IfRevision != w.rev {
			return View{}, ErrRevision
		}
		old, first := w.cfg, w.rev == 0
		for _, t := range w.tickets {
			if n := cmd.Config.Session; t.state == Active && (n.Idle < old.Session.Idle || n.Max < old.Session.Max) {
				t.token = max(t.token, min(w.now+time.Duration(old.Session.Idle), t.start+time.Duration(old.Session.Max)))
			}
		}
		w.cfg = *cmd.Config
		w.rev++
		if cmd.Digest != "" {
			w.digest = cmd.Digest
		}
		if w.cfg.Queue.Order != w.orderOf(^uint64(0)) {
			w.orders = append(w.orders, orderFrom{uint64(len(w.tickets)) + 1, w.cfg.Queue.Order})
		}
		if n := w.cfg.Capacity.RatePerMinute; n != old.Capacity.RatePerMinute && n > 0 {
			b := (n + 59) / 60
			if first {
				w.next = w.now
			} else {
				earliest := w.now
				if o := old.Capacity.RatePerMinute; o > 0 {
					ob := (o + 59) / 60
					earliest = max(w.now, w.next-time.Duration(ob-1)*((time.Minute+time.Duration(o-ob+1)-1)/time.Duration(o-ob+1)))
				}
				w.next = earliest + time.Duration(b-1)*w.interval()
			}
			w.admits = nil // what another rate admitted is not this one's
		} else if n == 0 {
			w.next = 0
		}
		s, o := w.cfg.Schedule, old.Schedule
		if first || !s.OpensAt.Equal(o.OpensAt.Time) || !s.ClosesAt.Equal(o.ClosesAt.Time) || s.Prequeue != o.Prequeue {
			p := w.wantPhase()
			if p == PhaseBefore && w.firstPre >= 0 {
				p = PhasePrequeue
			}
			w.closed = p == PhaseClosed
			w.setPhase(p, cmd.Seed)
		}
	case OpState:
		w.state, w.message = cmd.State, cmd.Message
		switch {
		case cmd.State == StateClosed:
			w.closed = true
			w.setPhase(PhaseClosed, nil)
		case cmd.State == StateOpen && w.phase == PhaseClosed:
			w.closed = false
			p := w.wantPhase()
			if p == PhaseClosed {
				p, w.closed = PhaseOpen, true
			}
			w.setPhase(p, cmd.Seed)
		}
	case OpInstances:
		w.instances = cmd.Instances
	}
	return View{}, nil
}

// pair drives a machine and its twin, a replica fed by events alone, and a mirror.
type pair struct {
	m       *Machine
	w       *twin
	replica *Machine
	mirror  *Mirror
	clock   int64
	nextID  uint64
	steps   int
	log     []Event
}

func newPair() *pair {
	return &pair{m: NewMachine(), w: &twin{instances: 1, state: StateOpen, phase: PhaseOpen, firstPre: -1}, replica: NewMachine(), mirror: NewMirror(), clock: 1_700_000_000_000_000}
}

func (p *pair) step(t *rapid.T, cmd *Command) Result {
	p.steps++
	limit := p.m.limit
	res := p.m.Step(cmd, p.clock)
	var admitted, picks []Ref
	for i := range res.Events {
		e := &res.Events[i]
		p.log = append(p.log, *e)
		b := e.Append(nil)
		back, rest, err := DecodeEvent(b)
		if err != nil || len(rest) != 0 || !bytes.Equal(back.Append(nil), b) {
			t.Fatalf("event %v does not survive encoding: %v", e, err)
		}
		if err := p.replica.Apply(&back); err != nil {
			t.Fatal(err)
		}
		if !p.mirror.Apply(&back) {
			t.Fatalf("mirror saw a gap at %v", e)
		}
		switch e.Type {
		case Admitted:
			admitted, picks = append(admitted, e.Ref), append(picks, e.Ref)
		case Abandoned:
			if cmd.Op != OpTick { // instead of being admitted
				picks = append(picks, e.Ref)
			}
		}
		// Never more admitted than the limit, at every position of the log.
		switch e.Type {
		case LimitChanged:
			limit = e.Limit.Limit
		case Admitted:
			if active := int64(len(p.mirror.Inside)); active > limit && p.m.config.Queue.Order != Passthrough {
				t.Fatalf("%d admitted, limit %d", active, limit)
			}
		}
	}
	v, want, err := p.w.step(cmd, p.clock, picks)
	if !errors.Is(res.Err, err) && !(err != nil && errors.Is(err, res.Err)) {
		t.Fatalf("%+v\nmachine %v, twin %v", cmd, res.Err, err)
	}
	if !slices.Equal(admitted, want) {
		t.Fatalf("%+v\nmachine admitted %v, twin %v", cmd, admitted, want)
	}
	if res.View.Ref != v.Ref || res.View.State != v.State || res.View.Reason != v.Reason || res.View.Created != v.Created {
		if !(v.State == Waiting && res.View.State == Active && slices.Contains(admitted, v.Ref)) {
			t.Fatalf("%+v\nmachine %+v\ntwin    %+v", cmd, res.View, v)
		}
	}
	p.check(t)
	return res
}

// check compares everything that can be asked, and holds the room to what must never happen.
func (p *pair) check(t *rapid.T) {
	w, m := p.w, p.m
	waiting := w.waiting()
	sum := m.Summary()
	if sum.Waiting != int64(len(waiting)) || sum.Active != w.active() || sum.Phase != w.phase || sum.State != w.state {
		t.Fatalf("machine %+v, twin %d waiting %d active %v %v", sum, len(waiting), w.active(), w.phase, w.state)
	}
	if got := p.mirror.Summary; got.Waiting != sum.Waiting || got.Active != sum.Active || got.AdmittedTotal != sum.AdmittedTotal || got.LastSeq != sum.LastSeq || got.Limit != sum.Limit {
		t.Fatalf("mirror %+v\nmachine %+v", got, sum)
	}
	for _, tk := range w.tickets {
		if tk.wasAdmitted > 1 {
			t.Fatalf("ticket %v was admitted %d times", tk.ref, tk.wasAdmitted)
		}
		if tk.forgotten {
			continue
		}
		v := m.view(tk.ref, false)
		if v.State != tk.state || v.Reason != tk.reason || (tk.state != Ended && v.Pos != tk.pos) {
			t.Fatalf("machine %+v\ntwin    %+v", v, tk)
		}
		r := p.replica.view(tk.ref, false)
		if r.State != v.State || r.Pos != v.Pos || r.Reason != v.Reason || r.Claimed != v.Claimed {
			t.Fatalf("replica %+v\nmachine %+v", r, v)
		}
		if tk.state != Waiting || tk.pos == 0 {
			continue
		}
		place := int64(1)
		for _, o := range waiting {
			if o.pos != 0 && o.pos < tk.pos {
				place++
			}
		}
		if got := int64(m.line.Before(tk.pos)) + 1; got != place {
			t.Fatalf("place of %v: machine %d, twin %d", tk.ref, got, place)
		}
		if got, ok := p.mirror.Place(v); ok && got != place {
			t.Fatalf("place of %v: mirror %d, twin %d", tk.ref, got, place)
		}
		if m.line.At(int(place-1)) != tk.pos {
			t.Fatalf("At(%d) = %d, want %d", place-1, m.line.At(int(place-1)), tk.pos)
		}
		if got, ok := SketchPlace(m.line.Sketch(), tk.pos); !ok || int64(got) != place { // under 100: exact
			t.Fatalf("sketch place %d %v, want %d", got, ok, place)
		}
	}
	// No half-open 60 s of room time holds more than R.
	if r := int(w.cfg.Capacity.RatePerMinute); r > 0 {
		for i := 0; i+r < len(w.admits); i++ {
			if w.admits[i+r]-w.admits[i] < time.Minute {
				t.Fatalf("%d admissions in %v at %d a minute", r+1, w.admits[i+r]-w.admits[i], r)
			}
		}
	}
	// A freed slot never waits for the next command.
	if w.mayAdmit() && len(w.drawn()) > 0 {
		t.Fatal("somebody could be admitted and was not")
	}
	if p.steps%16 == 0 {
		p.reload(t)
	}
}

// crash replaces the machine by what its log alone brings back.
func (p *pair) crash(t *rapid.T) {
	var b bytes.Buffer
	if err := p.replica.Save(&b); err != nil {
		t.Fatal(err)
	}
	m, err := Load(&b)
	if err != nil {
		t.Fatal(err)
	}
	m.Recover()
	p.m = m
	p.w.crash(&p.log[len(p.log)-1])
	p.check(t)
}

// reload replaces the replica by what a snapshot of it brings back.
func (p *pair) reload(t *rapid.T) {
	var b bytes.Buffer
	if err := p.replica.Save(&b); err != nil {
		t.Fatal(err)
	}
	m, err := Load(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := m.Save(&again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.Bytes(), b.Bytes()) || len(m.requests) != len(p.replica.requests) {
		t.Fatalf("a snapshot does not bring everything back:\n%q\n%q", b.Bytes(), again.Bytes())
	}
	a, _ := json.Marshal(p.replica.Summary())
	c, _ := json.Marshal(m.Summary())
	if !bytes.Equal(a, c) {
		t.Fatalf("before %s\nafter  %s", a, c)
	}
	if n := b.Len(); n > 10 {
		if _, err := Load(bytes.NewReader(b.Bytes()[:n-1-p.steps%(n/2)])); err == nil {
			t.Fatal("half a snapshot was read without an error")
		}
	}
	p.replica = m
}

func genConfig(t *rapid.T) Config {
	c := DefaultConfig("r")
	c.Capacity.Active = rapid.Int64Range(0, 4).Draw(t, "active")
	c.Capacity.PerInstance = rapid.SampledFrom([]int64{0, 0, 1, 2}).Draw(t, "per")
	c.Capacity.RatePerMinute = rapid.SampledFrom([]int64{0, 0, 1, 3, 60, 61, 90, 400}).Draw(t, "rate")
	if c.Capacity == (Capacity{}) {
		c.Capacity.Active = 2
	}
	c.Queue.Order = rapid.SampledFrom([]Order{FIFO, FIFO, FIFO, Random, Passthrough, Reject}).Draw(t, "order")
	c.Queue.MaxWaiting = rapid.SampledFrom([]int64{1_000_000, 1_000_000, 3}).Draw(t, "max waiting")
	c.Queue.Grace = Duration(rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, 30 * time.Second}).Draw(t, "grace"))
	c.Session.Idle = Duration(rapid.SampledFrom([]time.Duration{2 * time.Second, 10 * time.Second}).Draw(t, "idle"))
	c.Session.Max = Duration(rapid.SampledFrom([]time.Duration{10 * time.Second, 25 * time.Second}).Draw(t, "max"))
	c.Session.Claim = Duration(rapid.SampledFrom([]time.Duration{0, time.Second, 5 * time.Second}).Draw(t, "claim"))
	c.Session.Hold = rapid.SampledFrom([]bool{false, false, true}).Draw(t, "hold")
	return c
}

func TestMachineAgainstTwin(t *testing.T) {
	for range 4 { // runs are cheap here
		rapid.Check(t, machineAgainstTwin)
	}
}

func machineAgainstTwin(t *rapid.T) {
	p := newPair()
	cfg := genConfig(t)
	if rapid.Bool().Draw(t, "scheduled") {
		cfg.Schedule.OpensAt = Time{time.UnixMicro(p.clock).Add(time.Duration(rapid.IntRange(-5, 60).Draw(t, "opens")) * time.Second)}
		cfg.Schedule.Prequeue = Duration(30 * time.Second)
		if rapid.Bool().Draw(t, "closes") {
			cfg.Schedule.ClosesAt = Time{cfg.Schedule.OpensAt.Add(40 * time.Second)}
		}
	}
	seed := func() []byte { return rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "seed") }
	p.step(t, &Command{Op: OpConfigure, Config: &cfg, Seed: seed()})
	ref := func(t *rapid.T) Ref {
		if n := len(p.w.tickets); n > 0 && rapid.IntRange(0, 9).Draw(t, "known") > 0 {
			return p.w.tickets[rapid.IntRange(max(0, n-12), n-1).Draw(t, "ticket")].ref
		}
		return Ref{rapid.Uint64Range(0, 50).Draw(t, "seq"), testID(99999)}
	}
	random := func(t *rapid.T) uint64 { return rapid.Uint64().Draw(t, "random") }
	op := func(o Op) func(*rapid.T) {
		return func(t *rapid.T) { p.step(t, &Command{Op: o, Ref: ref(t), Rand: random(t)}) }
	}
	t.Repeat(map[string]func(*rapid.T){
		"enter": func(t *rapid.T) {
			for range rapid.IntRange(1, 4).Draw(t, "n") {
				p.nextID++
				cmd := &Command{Op: OpEnter, NewID: testID(p.nextID), Rand: random(t)}
				if rapid.Bool().Draw(t, "with request") {
					cmd.Request = [16]byte{rapid.ByteRange(1, 30).Draw(t, "request")}
				}
				if rapid.IntRange(0, 4).Draw(t, "with ticket") == 0 {
					cmd.Ref = ref(t)
				}
				p.step(t, cmd)
			}
		},
		"crash": func(t *rapid.T) {
			p.clock += rapid.SampledFrom([]int64{0, 1_000_000, 3_600_000_000, -5_000_000}).Draw(t, "away")
			p.crash(t)
		},
		"enter with an id of the draw": func(t *rapid.T) {
			p.step(t, &Command{Op: OpTick}) // so that time brings nothing more
			if n := len(p.w.tickets); p.m.line.pre != nil && p.w.phase == PhasePrequeue && p.w.state != StateClosed {
				before := p.m.Cursor
				id := p.w.tickets[rapid.IntRange(p.w.firstPre, n-1).Draw(t, "whose")].ref.ID
				res := p.m.Step(&Command{Op: OpEnter, NewID: id}, p.clock)
				if len(p.w.waiting()) < int(p.m.config.Queue.MaxWaiting) && !errors.Is(res.Err, ErrIDTaken) || p.m.Cursor != before {
					t.Fatalf("an id was drawn twice: %+v", res)
				}
			}
		},
		"status": op(OpStatus), "claim": op(OpClaim), "renew": op(OpRenew), "leave": op(OpLeave),
		"heard": func(t *rapid.T) {
			cmd := &Command{Op: OpHeard}
			for _, tk := range p.w.tickets {
				if rapid.Bool().Draw(t, "hears") {
					cmd.Refs = append(cmd.Refs, tk.ref)
				}
			}
			p.step(t, cmd)
		},
		"time": func(t *rapid.T) {
			p.clock += rapid.SampledFrom([]int64{1, 999, 100_000, 500_000, 1_000_000, 1_900_000, 5_000_000, -2_000_000, 60_000_000}).Draw(t, "µs")
			p.step(t, &Command{Op: OpTick, Rand: random(t)})
		},
		"much time": func(t *rapid.T) {
			for range 40 {
				p.clock += 1_500_000
				p.step(t, &Command{Op: OpTick, Rand: random(t)})
			}
		},
		"configure": func(t *rapid.T) {
			c := genConfig(t)
			c.Schedule = p.m.config.Schedule
			if rapid.IntRange(0, 3).Draw(t, "reschedule") == 0 {
				c.Schedule.OpensAt = Time{time.UnixMicro(p.clock).Add(time.Duration(rapid.IntRange(-5, 60).Draw(t, "opens")) * time.Second)}
				c.Schedule.ClosesAt = Time{}
			}
			cmd := &Command{Op: OpConfigure, Config: &c, Seed: seed(), Rand: random(t)}
			cmd.Digest = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "digest")
			cmd.IfRevision = rapid.SampledFrom([]uint64{0, 0, p.m.revision, 1}).Draw(t, "if")
			p.step(t, cmd)
		},
		"state": func(t *rapid.T) {
			p.step(t, &Command{Op: OpState, State: rapid.SampledFrom([]string{StateOpen, StateOpen, StatePaused, StateClosed}).Draw(t, "state"), Message: "m", Seed: seed(), Rand: random(t)})
		},
		"instances": func(t *rapid.T) {
			p.step(t, &Command{Op: OpInstances, Instances: rapid.Int64Range(0, 3).Draw(t, "n"), Rand: random(t)})
		},
	})
}

func testID(n uint64) (id ID) {
	copy(id[:], fmt.Sprintf("%016d", n))
	return id
}
