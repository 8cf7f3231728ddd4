package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/push"
	"github.com/ushergo/usher/push/stomp"
	"github.com/ushergo/usher/room"
)

// house is one real room on the memory engine, durable, with its hub. Those at the front of the line are on WebSockets,
// as many as a process may have files; the others are in the process, and take what the hub hands them.
type house struct {
	rooms *room.Rooms
	room  *room.Room
	hub   *push.Hub
	at    *push.Room
	mu    sync.Mutex
	line  []room.Visit // by order of entering
	in    []room.Ref   // who is inside
	freed []int64      // when a slot was freed, ns since 1970
}

const houseSlots = 500

func newHouse(dir string, waiters int) (*house, error) {
	engine, err := memory.Open(dir, memory.Options{})
	if err != nil {
		return nil, err
	}
	rooms, err := room.Open(context.Background(), engine, room.Options{})
	if err != nil {
		return nil, err
	}
	cfg := room.DefaultConfig("premiere")
	cfg.Capacity.Active = houseSlots
	cfg.Session.Claim, cfg.Session.Idle, cfg.Session.Max = room.Duration(time.Hour), room.Duration(time.Hour), room.Duration(2*time.Hour)
	ctx := context.Background()
	if _, err := rooms.Configure(ctx, cfg, 0); err != nil {
		return nil, err
	}
	h := &house{rooms: rooms, hub: push.New(push.Options{MaxConns: 1 << 20, AcceptPerSecond: 1 << 20, AcceptBurst: 1 << 20})}
	if h.room, err = rooms.Get(ctx, "premiere"); err != nil {
		return nil, err
	}
	h.at = h.hub.Room("premiere", h.open)
	for range houseSlots {
		v, err := h.room.Enter(ctx, room.Ref{}, [16]byte{})
		if err != nil {
			return nil, err
		}
		h.in = append(h.in, v.Ref)
	}
	h.line = make([]room.Visit, waiters)
	var wg sync.WaitGroup
	var once sync.Once
	for w := range 256 {
		wg.Go(func() {
			for i := w; i < waiters; i += 256 {
				v, e := h.room.Enter(ctx, room.Ref{}, [16]byte{})
				if e != nil {
					once.Do(func() { err = e })
					return
				}
				h.line[i] = v
			}
		})
	}
	wg.Wait()
	slices.SortFunc(h.line, func(a, b room.Visit) int { return int(a.Pos) - int(b.Pos) })
	return h, err
}

// open follows the room's log, as web does.
func (h *house) open(r *push.Room) (push.Source, push.Cursor) {
	h.room.Listen(func(events []room.Event) {
		if events == nil {
			r.Reset(push.Cursor(h.room.Head()))
			return
		}
		var changes []push.Change
		for i := range events {
			e := &events[i]
			c := push.Change{ID: push.ID(e.ID), N: e.N, Type: push.ChangeAdmitted, At: e.At}
			switch e.Type {
			case room.Admitted:
			case room.Left, room.Expired, room.Abandoned:
				c.Type, c.Reason = push.ChangeEnded, e.Reason.String()
			default:
				continue
			}
			changes = append(changes, c)
		}
		last := &events[len(events)-1]
		r.Events(changes, push.Cursor{Epoch: last.Epoch, N: last.N}, false)
	})
	return (*houseSource)(h), push.Cursor(h.room.Head())
}

// caller is the waiter of a number.
func (h *house) caller(ctx context.Context, n int) (stomp.Caller, error) {
	v := &h.line[n]
	from := h.at.Head()
	t := push.Ticket{Seq: v.Seq, ID: push.ID(v.ID), Name: v.ID.String()}
	st, err := (*houseSource)(h).Look(ctx, t)
	return stomp.Caller{Room: h.at, Ticket: t, Standing: st, From: from}, err
}

// ServeHTTP takes a WebSocket; its ticket is its number.
func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := stomp.Handler{Hub: h.hub, Caller: func(ctx context.Context, _ *http.Request, c stomp.Connect) (stomp.Caller, error) {
		n, err := strconv.Atoi(c.Ticket)
		if err != nil || n < 0 || n >= len(h.line) {
			return stomp.Caller{}, &stomp.Refusal{Code: push.CodePolicy, Message: "no such number"}
		}
		return h.caller(ctx, n)
	}}
	s.Serve(w, r, "")
}

func (h *house) conns() int    { return h.hub.Conns() }
func (h *house) broadcast(int) {}

// seat brings in the waiters from a number on without sockets.
func (h *house) seat(from int) error {
	for n := from; n < len(h.line); n++ {
		who, err := h.caller(context.Background(), n)
		if err != nil {
			return err
		}
		if _, err := h.hub.Accept(""); err != nil {
			return err
		}
		c, err := h.hub.Attach(who.Room, who.Ticket, who.Standing, who.From, push.Peer{Codec: seatCodec{}, All: true})
		if err != nil {
			return err
		}
		go func() {
			for range c.Pull() {
				c.Taken(nil)
			}
		}()
	}
	return nil
}

// free lets k of those inside go, one each 1/k s, so that k waiters are admitted.
func (h *house) free(k int) error {
	for range k {
		h.mu.Lock()
		ref := h.in[0]
		h.in = h.in[1:]
		h.freed = append(h.freed, time.Now().UnixNano())
		h.in = append(h.in, h.line[len(h.freed)-1].Ref) // she is next
		h.mu.Unlock()
		if _, err := h.room.Leave(context.Background(), ref); err != nil {
			return err
		}
		time.Sleep(time.Second / time.Duration(k))
	}
	return nil
}

type houseSource house

func (h *houseSource) Look(ctx context.Context, t push.Ticket) (push.Standing, error) {
	v, err := h.room.Status(ctx, room.Ref{Seq: t.Seq, ID: room.ID(t.ID)})
	if err != nil {
		return push.Standing{}, err
	}
	st := push.Standing{State: push.Waiting, Spot: push.Spot{Pos: v.Pos}, At: v.At}
	if v.State != room.Waiting {
		st.State, st.Admission = push.Admitted, []byte(`{"token":"as long as ours are: `+strings.Repeat("x", 400)+`"}`)
	}
	return st, nil
}

func (h *houseSource) Rank(s push.Spot) push.Rank {
	place, waiting, _, _ := h.room.Rank(room.View{State: room.Waiting, Pos: s.Pos})
	return push.Rank{Place: place, Waiting: waiting, At: time.Now().UnixMicro()}
}

func (h *houseSource) Stats() push.Stats {
	s := h.room.Summary()
	return push.Stats{Waiting: s.Waiting, Active: s.Active, State: "open", At: time.Now().UnixMicro()}
}

func (h *houseSource) Heard(t push.Ticket) { h.room.Heard(room.Ref{Seq: t.Seq, ID: room.ID(t.ID)}) }
func (*houseSource) Beat() time.Duration   { return 15 * time.Second }

// seatCodec is for those without sockets: the frames of SSE, about.
type seatCodec struct{}

func (seatCodec) Name() string  { return "seat" }
func (seatCodec) Topical() bool { return false }
func (seatCodec) AppendMessage(b []byte, m *push.Message, _ string) []byte {
	return append(append(b, m.Body...), '\n')
}
func (seatCodec) AppendBeat(b []byte) []byte                                          { return append(b, '\n') }
func (seatCodec) AppendPong(b, _ []byte) []byte                                       { return b }
func (seatCodec) AppendClose(b []byte, _ push.Code, _ string, _ time.Duration) []byte { return b }

// serveHouse is the server process: it obeys words and answers with what it is.
func serveHouse(waiters, sockets int) error {
	dir, err := os.MkdirTemp("", "usher-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	h, err := newHouse(dir, waiters)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, h) }()
	out := json.NewEncoder(os.Stdout)
	say := func(note string) error {
		f := h.hub.Figures()
		return out.Encode(state{Addr: l.Addr().String(), RSS: rss(), CPU: cpu(), Conns: h.conns(), Frames: f.Frames, Level: f.Level, Note: note})
	}
	if err := say(""); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var word string
		if err := json.Unmarshal(in.Bytes(), &word); err != nil {
			return err
		}
		note := ""
		switch {
		case word == "seat":
			err = h.seat(sockets)
			runtime.GC()
		case word == "freed":
			b, _ := json.Marshal(h.freed)
			note = string(b)
		case strings.HasPrefix(word, "free "):
			k, _ := strconv.Atoi(word[len("free "):])
			err = h.free(k)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
		if err := say(note); err != nil {
			return err
		}
	}
	return nil
}

// packed holds a room full of waiters, frees slots, and prints the share of the machine that telling them takes and how
// long it is from a freed slot to the admission at the client.
func packed(waiters, sockets, perSecond, seconds int) error {
	sockets = min(sockets, waiters)
	srv, err := startArgs("-serve", "house", "-waiters", strconv.Itoa(waiters), "-sockets", strconv.Itoa(sockets))
	if err != nil {
		return err
	}
	defer srv.stop()
	empty, err := srv.ask("state")
	if err != nil {
		return err
	}
	arrived := make([]int64, sockets) // ns since 1970, by number
	var wg sync.WaitGroup
	var mu sync.Mutex
	errs := make(chan error, sockets)
	gate := make(chan struct{}, 64)
	peers := make([]net.Conn, sockets)
	for n := range sockets {
		gate <- struct{}{}
		go func() {
			defer func() { <-gate }()
			c := &clients{kind: "usher", addr: srv.addr}
			nc, err := c.dialAs(n)
			if err != nil {
				errs <- err
				return
			}
			peers[n] = nc
			go func() {
				defer nc.Close()
				in := bufio.NewReaderSize(nc, 2<<10)
				for {
					line, err := in.ReadSlice(0) // a frame of STOMP ends in NUL
					if err != nil && len(line) == 0 {
						return
					}
					if strings.Contains(string(line), `"type":"admission"`) {
						mu.Lock()
						arrived[n] = time.Now().UnixNano()
						mu.Unlock()
						wg.Done()
						return
					}
				}
			}()
		}()
	}
	for range cap(gate) {
		gate <- struct{}{}
	}
	select {
	case err := <-errs:
		return err
	default:
	}
	// Signs of life, as a browser's answers to pings are.
	go func() {
		for range time.Tick(15 * time.Second) {
			for _, nc := range peers {
				_, _ = nc.Write([]byte{0x8a, 0x80, 0, 0, 0, 0}) // one that has been let in is closed
			}
		}
	}()
	full, err := srv.ask("seat")
	if err != nil {
		return err
	}
	if full.Conns != waiters {
		return fmt.Errorf("%d of %d are connected", full.Conns, waiters)
	}
	fmt.Printf("one room, %d waiters: %d on WebSockets, %d in the process; RSS %.0f MB, before them %.0f MB\n",
		waiters, sockets, waiters-sockets, full.RSS/1024, empty.RSS/1024)
	wg.Add(10 + perSecond*seconds)
	// Until the pace has found its level.
	for range 10 {
		if _, err := srv.ask(fmt.Sprint("free ", 1)); err != nil {
			return err
		}
	}
	before, err := srv.ask("state")
	if err != nil {
		return err
	}
	at := time.Now()
	for range seconds {
		if _, err := srv.ask(fmt.Sprint("free ", perSecond)); err != nil {
			return err
		}
	}
	after, err := srv.ask("state")
	if err != nil {
		return err
	}
	took := time.Since(at)
	told := make(chan struct{})
	go func() { wg.Wait(); close(told) }()
	select {
	case <-told:
	case <-time.After(time.Minute):
		fmt.Println("some admissions never arrived")
	}
	last, err := srv.ask("freed")
	if err != nil {
		return err
	}
	var freed []int64
	if err := json.Unmarshal([]byte(last.Note), &freed); err != nil {
		return err
	}
	var delays []time.Duration
	lost := 0
	mu.Lock()
	for n, at := range freed[10:] {
		if n+10 >= sockets || arrived[n+10] == 0 {
			lost++
			continue
		}
		delays = append(delays, time.Duration(arrived[n+10]-at))
	}
	mu.Unlock()
	slices.Sort(delays)
	q := func(p float64) time.Duration {
		return delays[int(float64(len(delays)-1)*p)].Round(100 * time.Microsecond)
	}
	cpus := float64(runtime.NumCPU())
	fmt.Printf("  %d slots/s freed for %v: CPU %.0f %% of the machine, %.0f frames/s, pace %d; freed slot to admitted frame: p50 %v, p99 %v, most %v, lost %d\n",
		perSecond, took.Round(time.Second), (after.CPU-before.CPU)/1e4/took.Seconds()/cpus, float64(after.Frames-before.Frames)/took.Seconds(), after.Level,
		q(.5), q(.99), q(1), lost)
	return nil
}
