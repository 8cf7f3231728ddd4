package stomp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push"
	"github.com/ushergo/usher/push/stomp"
)

// hall is a room of tests in which everybody who brings a number has a ticket.
type hall struct {
	mu      sync.Mutex
	message string
	n       uint64
	at      *push.Room
}

func (*hall) Look(context.Context, push.Ticket) (push.Standing, error) {
	return push.Standing{State: push.Waiting, Spot: push.Spot{Pos: 3}}, nil
}
func (*hall) Rank(push.Spot) push.Rank { return push.Rank{Place: 3, Waiting: 5} }
func (*hall) Heard(push.Ticket)        {}
func (*hall) Beat() time.Duration      { return 10 * time.Second }

func (h *hall) Stats() push.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return push.Stats{Waiting: 5, State: "open", Message: h.message, At: int64(h.n)}
}

// say tells everybody something that must not be lost.
func (h *hall) say(message string) {
	h.mu.Lock()
	h.message = message
	h.n++
	n := h.n
	h.mu.Unlock()
	h.at.Events(nil, push.Cursor{Epoch: 1, N: n}, true)
}

func openHall(t *testing.T, o push.Options) (*push.Hub, *hall, string) {
	t.Helper()
	o.AcceptPerSecond, o.AcceptBurst, o.MaxConns, o.MaxPerTicket = 1<<20, 1<<20, 1<<20, 1<<20
	hub := push.New(o)
	t.Cleanup(hub.Close)
	r := &hall{}
	r.at = hub.Room("premiere", func(*push.Room) (push.Source, push.Cursor) { return r, push.Cursor{Epoch: 1} })
	h := &stomp.Handler{Hub: hub, Caller: func(ctx context.Context, _ *http.Request, c stomp.Connect) (stomp.Caller, error) {
		n, err := strconv.Atoi(c.Ticket)
		if err != nil {
			return stomp.Caller{}, &stomp.Refusal{Code: push.CodePolicy, Message: "no valid ticket"}
		}
		from := r.at.Head()
		st, err := r.Look(ctx, push.Ticket{})
		id := push.ID{byte(n), byte(n >> 8), byte(n >> 16), 1}
		return stomp.Caller{Room: r.at, Ticket: push.Ticket{Seq: uint64(n), ID: id, Name: c.Ticket}, Standing: st, From: from}, err
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { h.Serve(w, req, "") }))
	t.Cleanup(s.Close)
	return hub, r, s.Listener.Addr().String()
}

// attend is a client of a number. from is the address that it dials from; "" is any.
func attend(addr, from string, n int) (net.Conn, *bufio.Reader, error) {
	d := ws.Dialer{Protocols: []string{"v12.stomp"}, NetDial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		nd := net.Dialer{Timeout: time.Minute}
		if from != "" {
			nd.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		return nd.DialContext(ctx, "tcp", addr)
	}}
	nc, br, _, err := d.Dial(context.Background(), "ws://"+addr)
	if err != nil {
		return nil, nil, err
	}
	if br == nil {
		br = bufio.NewReaderSize(nc, 512)
	}
	return nc, br, nil
}

func tell(nc net.Conn, text string) error {
	return ws.WriteFrame(nc, ws.MaskFrame(ws.NewTextFrame([]byte(text))))
}

func greet(n int) string {
	return fmt.Sprintf("CONNECT\naccept-version:1.2\nhost:x\nticket:%d\n\n\x00SUBSCRIBE\nid:s\ndestination:/topic/stats/premiere\n\n\x00", n)
}

// report is what a process of clients says once all of them have a round.
type report struct {
	Round  int
	Micros []int64 // from the word to its arrival
}

// TestCrowdProcess is a process full of clients, started by the tests below.
func TestCrowdProcess(t *testing.T) {
	addr := os.Getenv("USHER_CROWD")
	if addr == "" {
		t.Skip("started by other tests")
	}
	first, _ := strconv.Atoi(os.Getenv("USHER_CROWD_FIRST"))
	count, _ := strconv.Atoi(os.Getenv("USHER_CROWD_COUNT"))
	var mu sync.Mutex
	rounds := map[int][]int64{}
	out := json.NewEncoder(os.Stdout)
	note := func(round int, took int64) {
		mu.Lock()
		defer mu.Unlock()
		rounds[round] = append(rounds[round], took)
		if len(rounds[round]) == count {
			_ = out.Encode(report{round, rounds[round]})
			delete(rounds, round)
		}
	}
	var wg sync.WaitGroup
	for i := range count {
		nc, br, err := attend(addr, "", first+i)
		if err != nil {
			t.Fatal(err)
		}
		if err := tell(nc, greet(first+i)); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			var b []byte
			for {
				h, err := ws.ReadHeader(br)
				if err != nil {
					return
				}
				b = slices.Grow(b[:0], int(h.Length))[:h.Length]
				if _, err := io.ReadFull(br, b); err != nil {
					return
				}
				switch h.OpCode {
				case ws.OpPing:
					_ = ws.WriteFrame(nc, ws.MaskFrame(ws.NewPongFrame(b)))
				case ws.OpText:
					if k := bytes.Index(b, []byte(`"message":"round `)); k >= 0 {
						var round int
						var at int64
						if _, err := fmt.Sscanf(string(b[k+len(`"message":"`):]), "round %d %d", &round, &at); err == nil {
							note(round, (time.Now().UnixNano()-at)/1000)
						}
					}
				}
			}
		})
	}
	wg.Wait()
}

// crowd is such a process as seen from the test.
type crowd struct {
	cmd     *exec.Cmd
	reports chan report
}

func startCrowd(t *testing.T, addr string, first, count int) *crowd {
	t.Helper()
	c := &crowd{cmd: exec.Command(os.Args[0], "-test.run=^TestCrowdProcess$", "-test.v"), reports: make(chan report, 1000)}
	c.cmd.Env = append(os.Environ(), "USHER_CROWD="+addr, fmt.Sprint("USHER_CROWD_FIRST=", first), fmt.Sprint("USHER_CROWD_COUNT=", count))
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	go func() {
		for in := bufio.NewReaderSize(out, 1<<20); ; {
			line, err := in.ReadBytes('\n')
			var r report
			if json.Unmarshal(line, &r) == nil {
				c.reports <- r
			}
			if err != nil {
				close(c.reports)
				return
			}
		}
	}()
	return c
}

// TestStoppedProcessesHoldUpNobody holds 2,000 connections in 20 processes, stops two of them (SIGSTOP) and goes on
// telling everybody: nobody else loses a word, and the server's memory stays where it was. The delays are printed.
func TestStoppedProcessesHoldUpNobody(t *testing.T) { // cases/push 1, 2
	if testing.Short() {
		t.Skip("2,000 clients in 20 processes")
	}
	const processes, each, stopped, rounds = 20, 100, 2, 30
	hub, hall, addr := openHall(t, push.Options{})
	var crowds []*crowd
	for i := range processes {
		crowds = append(crowds, startCrowd(t, addr, i*each, each))
	}
	for end := time.Now().Add(4 * time.Minute); hub.Conns() < processes*each; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d clients connected", hub.Conns(), processes*each)
		}
	}

	round := 0
	long := strings.Repeat("x", 16<<10) // what is said in all rounds does not fit into a stopped one's buffers
	tellAll := func(to []*crowd) []int64 {
		t.Helper()
		var all []int64
		for range rounds {
			round++
			hall.say(fmt.Sprintf("round %d %d %s", round, time.Now().UnixNano(), long))
			for i, c := range to {
				for {
					select {
					case r, ok := <-c.reports:
						if !ok {
							t.Fatalf("process %d of clients ended in round %d", i, round)
						}
						if r.Round < round && r.Round > 0 {
							continue // of the first words, told on connecting
						}
						if r.Round != round || len(r.Micros) != each {
							t.Fatalf("round %d: process %d has round %d from %d", round, i, r.Round, len(r.Micros))
						}
						all = append(all, r.Micros...)
					case <-time.After(2 * time.Minute):
						t.Fatalf("round %d never reached all of process %d", round, i)
					}
					break
				}
			}
		}
		return all
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	tellAll(crowds) // warm
	before := tellAll(crowds[stopped:])
	base := heap()
	for _, c := range crowds[:stopped] {
		if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	during := tellAll(crowds[stopped:])
	grown := heap() - base
	for _, c := range crowds[:stopped] {
		_ = c.cmd.Process.Signal(syscall.SIGCONT)
	}
	p := func(of []int64, q float64) time.Duration {
		slices.Sort(of)
		return time.Duration(of[int(float64(len(of)-1)*q)]) * time.Microsecond
	}
	t.Logf("%d clients told %d words of 16 KiB: p50 %v, p99 %v; with %d more stopped: p50 %v, p99 %v (%.2f of before); heap grew by %d KiB",
		len(before)/rounds, rounds, p(before, .5), p(before, .99), stopped*each, p(during, .5), p(during, .99), float64(p(during, .99))/float64(p(before, .99)), grown>>10)
	if want := (processes - stopped) * each * rounds; len(during) != want {
		t.Errorf("%d words arrived of %d", len(during), want)
	}
	if hub.Conns() < (processes-stopped)*each {
		t.Errorf("%d connections are left", hub.Conns())
	}
	if hub.Figures().Slowed < stopped*each {
		t.Errorf("%d were slow: the stopped ones were not noticed, nothing was tested", hub.Figures().Slowed)
	}
	// What they have not taken is 96 MiB; what may be kept of it is one write each.
	if most := int64(stopped*each*64<<10 + 16<<20); grown > most {
		t.Errorf("the heap grew by %d KiB for %d stopped clients, over %d", grown>>10, stopped*each, most>>10)
	}
}

func TestChurnLeavesNothingBehind(t *testing.T) { // cases/push 7
	n := 4000
	if testing.Short() {
		n = 400
	}
	churn(t, n)
}

func TestSoakChurn(t *testing.T) { // cases/push 7
	if os.Getenv("USHER_SOAK") == "" {
		t.Skip("100,000 connections come and go: USHER_SOAK=1")
	}
	churn(t, 100_000)
}

// churn connects and leaves n times, in each of the ways to leave, and looks for what stays behind.
func churn(t *testing.T, n int) {
	hub, _, addr := openHall(t, push.Options{})
	var failed atomic.Int64
	cycle := func(n int) {
		work := make(chan int)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for i := range work {
					if err := comeAndGo(addr, i); err != nil {
						if failed.Add(1) < 5 {
							t.Errorf("cycle %d: %v", i, err)
						}
					}
				}
			})
		}
		for i := range n {
			work <- i
		}
		close(work)
		wg.Wait()
		eventually(t, func() bool { return hub.Conns() == 0 })
	}
	cycle(300) // what pools and maps keep
	state := func() (goroutines int, heap int64) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), int64(m.HeapAlloc)
	}
	goroutines, heap := state()
	cycle(n)
	var g int
	var h int64
	eventually(t, func() bool {
		g, h = state()
		return g <= goroutines+4 && h <= heap+1<<20
	})
	t.Logf("%d connections came and went: %d goroutines before, %d after; heap %d KiB before, %d KiB after", n, goroutines, g, heap>>10, h>>10)
}

// comeAndGo connects, and leaves in one of five ways.
func comeAndGo(addr string, i int) error {
	from := fmt.Sprintf("127.0.0.%d", 2+i%16) // a port that was closed is not used again for a minute
	if i%5 == 0 {                             // before a word is said
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
	nc, br, err := attend(addr, from, i%1000)
	if err != nil {
		return err
	}
	defer nc.Close()
	_ = nc.SetReadDeadline(time.Now().Add(time.Minute))
	if i%5 == 1 { // no CONNECT
		return nil
	}
	if err := tell(nc, greet(i%1000)); err != nil {
		return err
	}
	if _, err := ws.ReadHeader(br); err != nil {
		return err
	}
	switch i % 5 {
	case 2: // cut
		return nc.(*net.TCPConn).SetLinger(0)
	case 3: // as the protocol has it: up to the server's close
		if err := tell(nc, "DISCONNECT\nreceipt:bye\n\n\x00"); err != nil {
			return err
		}
		if rest, err := io.ReadAll(br); err != nil || !bytes.Contains(rest, []byte("receipt-id:bye")) {
			return fmt.Errorf("no receipt: %v", err)
		}
	}
	return nil
}
