package room

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	mrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options of Open. The zero value works.
type Options struct {
	Logger   *slog.Logger // default: discards
	Observer Observer     // default: sees nothing
	// Instances counts the living instances of what a room protects, for capacity.per_instance; ok is false while there is no
	// number to go by. It is asked once a second, by the node that leads the room, and must answer within ctx.
	// Default: 1, and instances.fallback with source static.
	Instances func(ctx context.Context, c Config) (n int64, ok bool)
	// Leads says whether this node does for a room what one of all nodes needs to do. Two that do it do no harm.
	// Default: always.
	Leads func(room string) bool
	// Discover is how often the store is asked for rooms that another node has made. Default: never.
	Discover time.Duration
}

// Observer sees what a room does, for metrics and traces. Its methods are called from many
// goroutines and must not block.
type Observer interface {
	// Begin is called before a command goes to the store; what it returns, after.
	Begin(ctx context.Context, room string, op Op) (context.Context, func(Result, error))
	// Events is called with what the log brought, in order.
	Events(room string, events []Event)
	// ETA is called when somebody to whom an ETA was told is admitted.
	ETA(room string, predicted ETA, actual time.Duration)
}

type noObserver struct{}

func (noObserver) Begin(ctx context.Context, _ string, _ Op) (context.Context, func(Result, error)) {
	return ctx, func(Result, error) {}
}
func (noObserver) Events(string, []Event)         {}
func (noObserver) ETA(string, ETA, time.Duration) {}

// Rooms holds the rooms of one store. Safe for concurrent use.
type Rooms struct {
	store Store
	opts  Options
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup

	proofs proofs

	mu    sync.Mutex
	rooms map[string]*Room
}

// Open follows every room that the store has. ctx bounds the opening alone.
func Open(ctx context.Context, store Store, opts Options) (*Rooms, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Observer == nil {
		opts.Observer = noObserver{}
	}
	if opts.Instances == nil {
		opts.Instances = oneInstance
	}
	if opts.Leads == nil {
		opts.Leads = func(string) bool { return true }
	}
	rs := &Rooms{store: store, opts: opts, rooms: map[string]*Room{}}
	rs.ctx, rs.stop = context.WithCancel(context.Background())
	ids, err := store.Rooms(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if _, err := rs.Get(ctx, id); err != nil {
			rs.Close()
			return nil, fmt.Errorf("room %s: %w", id, err)
		}
	}
	if opts.Discover > 0 {
		rs.wg.Go(rs.discover)
	}
	return rs, nil
}

// Close stops following. Rooms stay in the store.
func (rs *Rooms) Close() {
	rs.mu.Lock() // nobody begins to follow from here on
	rs.stop()
	rs.mu.Unlock()
	rs.wg.Wait()
}

// Get returns a room, ready to answer, or ErrNotFound.
func (rs *Rooms) Get(ctx context.Context, id string) (*Room, error) {
	rs.mu.Lock()
	r := rs.rooms[id]
	if r == nil {
		if rs.ctx.Err() != nil {
			rs.mu.Unlock()
			return nil, fmt.Errorf("%w: usher is stopping", ErrUnavailable)
		}
		r = newRoom(rs, id)
		rs.rooms[id] = r
		rs.wg.Go(r.follow)
		rs.wg.Go(r.keep)
	}
	rs.mu.Unlock()
	select {
	case <-r.ready:
		select {
		case <-r.gone:
			return nil, ErrNotFound
		default:
		}
		return r, nil
	case <-r.gone:
		return nil, ErrNotFound
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: room %s has not answered: %w", ErrUnavailable, id, ctx.Err())
	}
}

// Lookup returns a room that is being followed, without asking the store.
func (rs *Rooms) Lookup(id string) (*Room, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r, ok := rs.rooms[id]
	if ok {
		select {
		case <-r.ready:
		default:
			return nil, false
		}
	}
	return r, ok
}

// List returns the rooms being followed, sorted by id.
func (rs *Rooms) List() []*Room {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	list := make([]*Room, 0, len(rs.rooms))
	for _, r := range rs.rooms {
		select {
		case <-r.ready:
			list = append(list, r)
		default:
		}
	}
	slices.SortFunc(list, func(a, b *Room) int { return strings.Compare(a.id, b.id) })
	return list
}

// Health is the store's, and that the rooms' logs arrive.
func (rs *Rooms) Health() error {
	if err := rs.store.Health(); err != nil {
		return err
	}
	for _, r := range rs.List() {
		if err := r.behind.err(r.id, r.Head(), time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// Configure makes or changes a room as the admin API asks. ifRevision guards against
// overwriting somebody else's change: 0 means any. Errors: *FieldError joined, ErrRevision.
func (rs *Rooms) Configure(ctx context.Context, c Config, ifRevision uint64) (*Room, error) {
	return rs.configure(ctx, &Command{Op: OpConfigure, Config: &c, IfRevision: ifRevision})
}

// ApplyFile makes or changes a room as the configuration file says, if that differs from what
// the file said last: a change by the admin API stands until then.
func (rs *Rooms) ApplyFile(ctx context.Context, c Config) (*Room, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	return rs.configure(ctx, &Command{Op: OpConfigure, Config: &c, Digest: hex.EncodeToString(sum[:])})
}

func (rs *Rooms) configure(ctx context.Context, cmd *Command) (*Room, error) {
	if err := cmd.Config.Validate(); err != nil {
		return nil, err
	}
	cmd.Seed = make([]byte, 32)
	rand.Read(cmd.Seed)
	res, err := rs.do(ctx, cmd.Config.ID, cmd)
	if err != nil {
		return nil, err
	}
	if res.Err != nil {
		return nil, res.Err
	}
	for {
		r, err := rs.Get(ctx, cmd.Config.ID)
		if errors.Is(err, ErrNotFound) { // somebody asked for it before it was there; or it is deleted again
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
			}
			ids, err := rs.store.Rooms(ctx)
			if err == nil && slices.Contains(ids, cmd.Config.ID) {
				continue
			}
			return nil, ErrNotFound
		}
		if err != nil {
			return nil, err
		}
		return r, r.countInstances(ctx)
	}
}

// Delete forgets a room and its log; ErrWaiters while people wait, unless force.
func (rs *Rooms) Delete(ctx context.Context, id string, force bool) error {
	rs.mu.Lock()
	r := rs.rooms[id]
	rs.mu.Unlock()
	if err := rs.store.Delete(ctx, id, force); err != nil {
		return err
	}
	if r != nil { // until its follower has heard of it, the name still leads to the old room
		select {
		case <-r.gone:
		case <-rs.ctx.Done():
		case <-ctx.Done():
		}
	}
	return nil
}

func (rs *Rooms) do(ctx context.Context, id string, cmd *Command) (Result, error) {
	cmd.Rand = mrand.Uint64()
	if cmd.Ref.Seq != 0 {
		p := rs.proofs.of(cmd.Ref.ID)
		cmd.Issued, cmd.Admitted = p.issued, p.admitted
	}
	ctx, end := rs.opts.Observer.Begin(ctx, id, cmd.Op)
	res, err := rs.store.Do(ctx, id, cmd)
	end(res, err)
	return res, err
}

// Room is one waiting room. Safe for concurrent use.
type Room struct {
	id    string
	rooms *Rooms
	ready chan struct{} // closed once followed
	gone  chan struct{} // closed once the store says it does not exist

	mu       sync.RWMutex
	mirror   *Mirror
	watchers map[ID]map[*Watcher]struct{}
	everyone map[*Watcher]struct{}
	uses     map[ID]*use
	told     map[ID]prediction

	behind behind

	listenMu  sync.Mutex
	listeners map[int]func([]Event)
	listened  int

	heardMu   sync.Mutex
	heard     map[Ref]struct{}
	heardHint int // for how many it was made

	unfollowed, unheard atomic.Bool // the log is not being followed; signs of life did not arrive the last time
}

// prediction is an ETA that was told, to be compared with what became of it.
type prediction struct {
	eta ETA
	at  int64
}

const maxPredictions = 1000

func newRoom(rs *Rooms, id string) *Room {
	return &Room{
		id: id, rooms: rs, ready: make(chan struct{}), gone: make(chan struct{}), mirror: NewMirror(),
		watchers: map[ID]map[*Watcher]struct{}{}, everyone: map[*Watcher]struct{}{},
		uses: map[ID]*use{}, told: map[ID]prediction{}, heard: map[Ref]struct{}{},
	}
}

// ID is the room's id.
func (r *Room) ID() string { return r.id }

// Gone is closed once the room has been deleted.
func (r *Room) Gone() <-chan struct{} { return r.gone }

// Visit is a ticket and the room around it, as an answer to its visitor.
type Visit struct {
	View
	At            int64 // decision time, µs since 1970
	Place         int64 // living waiters ahead, plus one; 0: none to tell, or admitted
	Waiting       int64
	ETA           *ETA // nil: no basis yet
	RoomState     string
	Message       string
	PollAfter     time.Duration
	PresenceAfter time.Duration
}

// Enter gives a place in the room: that of a live ticket if one is presented, else that of
// the request id (zero: none), else a new one. Errors: ErrClosed, ErrNotOpen, ErrFull,
// ErrSpent, ErrUnavailable, ErrUnknown (ask again with the same request id).
func (r *Room) Enter(ctx context.Context, presented Ref, request [16]byte) (Visit, error) {
	cmd := &Command{Op: OpEnter, Ref: presented, Request: request}
	for range 3 {
		rand.Read(cmd.NewID[:])
		v, err := r.visit(ctx, cmd)
		if !errors.Is(err, ErrIDTaken) {
			return v, err
		}
	}
	return Visit{}, ErrIDTaken
}

// Status tells what became of a ticket, and is a sign of life. For who waits by the log as it is known here the store is
// not asked, and At is that of the log. Errors: ErrEnded (View.Reason says why), ErrNoTicket.
func (r *Room) Status(ctx context.Context, ref Ref) (Visit, error) {
	if res, ok := r.waits(ref); ok {
		r.Heard(ref)
		return r.dress(res), nil
	}
	return r.visit(ctx, &Command{Op: OpStatus, Ref: ref})
}

// Claim uses an admission for the first time; repeating it renews. Errors: ErrNotAdmitted, ErrEnded, ErrNoTicket.
func (r *Room) Claim(ctx context.Context, ref Ref) (Visit, error) {
	return r.visit(ctx, &Command{Op: OpClaim, Ref: ref})
}

// Renew keeps a session from ending by idle. Errors as Claim.
func (r *Room) Renew(ctx context.Context, ref Ref) (Visit, error) {
	return r.visit(ctx, &Command{Op: OpRenew, Ref: ref})
}

// Leave gives up a place or a session; repeating it changes nothing. Errors: ErrNoTicket.
func (r *Room) Leave(ctx context.Context, ref Ref) (Visit, error) {
	return r.visit(ctx, &Command{Op: OpLeave, Ref: ref})
}

// visit returns the visit with the machine's own errors too: it says why.
func (r *Room) visit(ctx context.Context, cmd *Command) (Visit, error) {
	res, err := r.rooms.do(ctx, r.id, cmd)
	if err != nil {
		return Visit{}, err
	}
	return r.dress(res), res.Err
}

// dress adds what the mirror knows to a view.
func (r *Room) dress(res Result) Visit {
	v := Visit{View: res.View, At: res.At}
	r.mu.RLock()
	s := &r.mirror.Summary
	v.Waiting, v.RoomState, v.Message = s.Waiting, EffectiveState(s.State, s.Phase), s.Message
	grace := time.Duration(s.Config.Queue.Grace)
	if place, ok := r.mirror.Place(v.View); ok {
		v.Place = place
		v.Waiting = max(v.Waiting, place) // see Mirror.Place
	}
	if v.State == Waiting && !v.Created && r.mirror.Cursor.Before(res.Cursor) {
		v.At = min(v.At, r.mirror.At) // the place is as of then: who was told a newer one by another node must not see it rise
	}
	r.mu.RUnlock()
	if v.Place > 0 {
		r.mu.Lock() // the pace moves on with the time
		if eta, ok := r.mirror.ETA(v.Place); ok {
			v.ETA = &eta
			// Only of those who still wait by the log: nothing would take the others out again.
			if _, known := r.told[v.ID]; !known && len(r.told) < maxPredictions && r.mirror.Line.Has(v.Pos) {
				r.told[v.ID] = prediction{eta, v.At}
			}
		}
		r.mu.Unlock()
	}
	v.PollAfter, v.PresenceAfter = pollAfter(v, grace), jitter(grace*3/10)
	return v
}

// pollAfter is when to ask again: the nearer the front, the sooner.
func pollAfter(v Visit, grace time.Duration) time.Duration {
	d := 15 * time.Second
	switch {
	case v.State == Active || v.RoomState == StatePaused:
		d = 5 * time.Second
	case v.Place == 0:
		d = 10 * time.Second
	case v.Place*100 <= v.Waiting || v.Place <= 20:
		d = 2 * time.Second
	case v.Place*10 <= v.Waiting:
		d = 5 * time.Second
	case v.Place*2 <= v.Waiting:
		d = 10 * time.Second
	}
	return jitter(max(min(d, grace/3), time.Second))
}

// jitter spreads d over ±10 %.
func jitter(d time.Duration) time.Duration {
	return d*9/10 + time.Duration(mrand.Int64N(int64(d)/5+1))
}

// Heard notes a sign of life of a waiter; it reaches the store within a second, with others.
func (r *Room) Heard(ref Ref) {
	r.heardMu.Lock()
	if len(r.heard) < 1_000_000 {
		r.heard[ref] = struct{}{}
	}
	r.heardMu.Unlock()
}

// SetState opens, pauses or closes the room, with a message for its visitors (≤ 1000 bytes).
func (r *Room) SetState(ctx context.Context, state, message string) error {
	seed := make([]byte, 32)
	rand.Read(seed)
	_, err := r.change(ctx, &Command{Op: OpState, State: state, Message: message, Seed: seed})
	return err
}

func (r *Room) change(ctx context.Context, cmd *Command) (Result, error) {
	res, err := r.rooms.do(ctx, r.id, cmd)
	if err == nil {
		err = res.Err
	}
	return res, err
}

// Summary is the room as a whole, from the log.
func (r *Room) Summary() Summary {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mirror.Summary
}

// Log reads events after a cursor; see Store.Events.
func (r *Room) Log(ctx context.Context, after Cursor, limit int) ([]Event, Cursor, error) {
	return r.rooms.store.Events(ctx, r.id, after, limit)
}

// Head is how far the log has been read here.
func (r *Room) Head() Cursor {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mirror.Cursor
}

// Now is the public document: the same for everybody.
type Now struct {
	Room      string      `json:"room"`
	RoomState string      `json:"room_state"`
	Message   string      `json:"message"`
	Waiting   int64       `json:"waiting"`
	Active    int64       `json:"active"`
	Order     Order       `json:"order"`
	LastSeq   uint64      `json:"last_seq"`
	Sketch    [][2]uint64 `json:"sketch"` // pairs (pos, place); see SketchPlace
	ETAs      []PlaceETA  `json:"etas"`   // the wait from some places
	OpensAt   *Time       `json:"opens_at"`
	ClosesAt  *Time       `json:"closes_at"`
	Opening   *Opening    `json:"opening"`
	At        string      `json:"at"`
}

// PlaceETA is the wait from one place.
type PlaceETA struct {
	Place int64 `json:"place"`
	ETA
}

// Now makes the public document. It costs some microseconds whatever the number waiting.
func (r *Room) Now() Now {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.mirror.Summary
	n := Now{
		Room: r.id, RoomState: EffectiveState(s.State, s.Phase), Message: s.Message, Waiting: s.Waiting, Active: s.Active,
		Order: s.Config.Queue.Order, LastSeq: s.LastSeq, Sketch: r.mirror.Line.Sketch(), ETAs: []PlaceETA{}, At: FormatAt(time.Now().UnixMicro()),
	}
	for place := int64(1); place < 2*s.Waiting; place *= 2 {
		p := min(place, s.Waiting)
		if eta, ok := r.mirror.ETA(p); ok {
			n.ETAs = append(n.ETAs, PlaceETA{p, eta})
		}
	}
	if t := s.Config.Schedule.OpensAt; !t.IsZero() {
		n.OpensAt = &t
	}
	if t := s.Config.Schedule.ClosesAt; !t.IsZero() {
		n.ClosesAt = &t
	}
	if s.Opening != (Opening{}) {
		o := s.Opening
		n.Opening = &o
	}
	return n
}

// follow keeps the mirror up with the log for as long as the room lives.
func (r *Room) follow() {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		ctx, end := context.WithCancel(r.rooms.ctx)
		r.behind.following(end)
		err := r.rooms.store.Follow(ctx, r.id, (*follower)(r))
		end()
		r.unfollowed.Store(true)
		switch {
		case r.rooms.ctx.Err() != nil:
			return
		case errors.Is(err, ErrNotFound):
			r.rooms.mu.Lock()
			if r.rooms.rooms[r.id] == r {
				delete(r.rooms.rooms, r.id)
			}
			r.rooms.mu.Unlock()
			close(r.gone)
			r.closeWatchers()
			return
		}
		r.rooms.opts.Logger.Error("lost the room's log; following it again", "room", r.id, "err", err, "in", wait)
		select {
		case <-time.After(wait + time.Duration(mrand.Int64N(int64(wait)))):
		case <-r.rooms.ctx.Done():
			return
		}
	}
}

// follower is Room's side that the store sees.
type follower Room

func (f *follower) Reset(m *Mirror) {
	r := (*Room)(f)
	defer r.tell(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mirror = m
	r.unfollowed.Store(false)
	clear(r.told)               // who was admitted meanwhile is not known
	for id, u := range r.uses { // what ended while we did not look
		if _, ok := m.Inside[id]; !ok {
			u.end()
			delete(r.uses, id)
		}
	}
	r.notifyAll()
	select {
	case <-r.ready:
	default:
		close(r.ready)
	}
}

func (f *follower) Apply(events []Event) {
	r := (*Room)(f)
	r.mu.Lock()
	for i := range events {
		e := &events[i]
		if !r.mirror.Apply(e) {
			r.rooms.opts.Logger.Error("gap in the room's log", "room", r.id, "at", r.mirror.Cursor, "event", e.N)
			continue
		}
		if e.Seq != 0 {
			r.seen(e)
		} else {
			r.notifyAll()
		}
	}
	r.mu.Unlock()
	r.tell(events)
	r.rooms.opts.Observer.Events(r.id, events)
}

// seen tells those concerned about a ticket's event.
func (r *Room) seen(e *Event) {
	if e.WasActive {
		if u := r.uses[e.ID]; u != nil {
			u.end()
			delete(r.uses, e.ID)
		}
	}
	if e.Type == Admitted {
		if p, ok := r.told[e.ID]; ok {
			delete(r.told, e.ID)
			r.rooms.opts.Observer.ETA(r.id, p.eta, time.Duration(e.At-p.at)*time.Microsecond)
		}
	} else if e.Type >= Left {
		delete(r.told, e.ID)
	}
	for w := range r.watchers[e.ID] {
		w.notify()
	}
}

// keep sends signs of life and renewals in bulk, and follows the instances, once a second.
func (r *Room) keep() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-r.gone:
			return
		case <-r.rooms.ctx.Done():
			return
		}
		if n%behindProbe == 0 {
			r.probe(r.rooms.ctx)
		}
		r.flushHeard(r.rooms.ctx)
		r.renewOpen(r.rooms.ctx)
		if r.rooms.opts.Leads(r.id) {
			ctx, cancel := context.WithTimeout(r.rooms.ctx, time.Second)
			if err := r.countInstances(ctx); err != nil && r.rooms.ctx.Err() == nil {
				r.rooms.opts.Logger.Warn("the room's limit does not follow its instances", "room", r.id, "err", err)
			}
			cancel()
		}
	}
}

// flushHeard sends the signs of life noted since the last time.
func (r *Room) flushHeard(ctx context.Context) {
	r.heardMu.Lock()
	heard := r.heard
	if len(heard) == 0 { // still the one that Heard writes to
		r.unheard.Store(false) // nobody who could tell: try again
		if r.heardHint > 0 {   // made for a rush that is over
			r.heard, r.heardHint = map[Ref]struct{}{}, 0
		}
		r.heardMu.Unlock()
		return
	}
	r.heardHint = 1 << bits.Len(uint(len(heard)/2))
	r.heard = make(map[Ref]struct{}, r.heardHint)
	r.heardMu.Unlock()
	left := len(heard)
	var refs []Ref
	for ref := range heard {
		if refs == nil {
			refs = make([]Ref, 0, min(left, MaxMoves))
		}
		if refs = append(refs, ref); len(refs) < cap(refs) {
			continue
		}
		_, err := r.change(ctx, &Command{Op: OpHeard, Refs: refs})
		r.unheard.Store(err != nil)
		if err != nil {
			if ctx.Err() == nil {
				r.rooms.opts.Logger.Warn("signs of life were not noted; grace covers it", "room", r.id, "n", left, "err", err)
			}
			return
		}
		left, refs = left-len(refs), nil
	}
}
