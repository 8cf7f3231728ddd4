package browsertest

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push/stomp"
)

// binary is usher itself, built once for all tests.
var binary = sync.OnceValues(func() (bin string, err error) {
	defer func() { built = bin }()
	dir, err := os.MkdirTemp("", "usher-push-")
	if err != nil {
		return "", err
	}
	bin = filepath.Join(dir, "usher")
	out, err := exec.Command("go", "build", "-o", bin, "../../cmd/usher").CombinedOutput()
	if err != nil {
		return bin, fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
})

var built string // by binary, to be removed

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // they wait more than they work
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(filepath.Dir(built))
	}
	os.Exit(code)
}

// process is a usher process with one room, which can be killed and come back on its data.
type process struct {
	t      *testing.T
	dir    string
	cmd    *exec.Cmd
	ended  chan struct{}
	public string
	log    lockedBuilder
}

type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) line(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.WriteString(s + "\n")
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run starts usher with a room premiere of one slot; more are lines of YAML, queue is its queue.
func run(t *testing.T, queue, more string) *process {
	t.Helper()
	if _, err := binary(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, dir: t.TempDir()}
	file := fmt.Sprintf("public: {listen: 127.0.0.1:0}\nadmin: {listen: 127.0.0.1:0}\nengine: {kind: memory, dir: %s}\n%s\n"+
		"rooms:\n  - id: premiere\n    capacity: {active: 1}\n    session: {idle: 20m, claim: 20m}\n    queue: {%s}\n",
		filepath.Join(p.dir, "data"), more, queue)
	if err := os.WriteFile(filepath.Join(p.dir, "usher.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	bin, _ := binary()
	p.cmd = exec.Command(bin, "serve", "--log-format", "json", "--config", filepath.Join(p.dir, "usher.yaml"))
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	up, ended, cmd := make(chan string, 1), make(chan struct{}), p.cmd
	p.ended = ended
	go func() {
		defer close(ended)
		for in := bufio.NewScanner(stderr); in.Scan(); {
			p.log.line(in.Text())
			var line struct{ Msg, Public string }
			if json.Unmarshal(in.Bytes(), &line) == nil && strings.HasPrefix(line.Msg, "usher is up") {
				up <- line.Public
			}
		}
		_ = cmd.Wait()
	}()
	select {
	case p.public = <-up:
		p.public = p.public[strings.LastIndex(p.public, "/")+1:]
	case <-ended:
		p.t.Fatalf("usher ended:\n%s", p.log.String())
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("usher did not come up:\n%s", p.log.String())
	}
}

// kill is SIGKILL.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// visit is a visitor of the room.
type visit struct {
	State, Ticket string
	TicketID      string `json:"ticket_id"`
	Place         int
}

func (p *process) enter() (v visit) {
	p.t.Helper()
	resp, err := http.Post("http://"+p.public+"/v1/rooms/premiere/enter", "", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || v.Ticket == "" {
		p.t.Fatalf("enter: %s, %v", resp.Status, err)
	}
	return v
}

func (p *process) leave(v visit) {
	p.t.Helper()
	req, _ := http.NewRequest("POST", "http://"+p.public+"/v1/rooms/premiere/leave", nil)
	req.Header.Set("Usher-Ticket", v.Ticket)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Error(err)
		return
	}
	resp.Body.Close()
	if resp.StatusCode != 204 {
		p.t.Errorf("leave: %s", resp.Status)
	}
}

func TestThePageOutlivesKills(t *testing.T) {
	need(t, true)
	t.Parallel()
	u := run(t, "grace: 5m", "")
	inside, ahead, next := u.enter(), u.enter(), u.enter()
	p := between(t, u.public)
	node(t, map[string]func(){
		"all":  func() {}, // there is nothing in the way
		"kill": u.kill,
		"back": func() { u.start(); p.lead(u.public) },
		"one":  func() { u.leave(ahead) },
		"free": func() { u.leave(inside); u.leave(next) },
	}, nil, "kills.mjs", "http://"+p.addr)
}

// line is a STOMP client in Go: dial reaches usher, or what stands in front of it.
type line struct {
	nc net.Conn
	br *bufio.Reader
	d  stomp.Decoder
}

func follow(dial func() (net.Conn, error), v visit) (*line, error) {
	d := ws.Dialer{Protocols: []string{"v12.stomp"}, Timeout: time.Minute, NetDial: func(context.Context, string, string) (net.Conn, error) { return dial() }}
	nc, br, _, err := d.Dial(context.Background(), "ws://usher.test/v1/stomp")
	if err != nil {
		return nil, err
	}
	if br == nil {
		br = bufio.NewReader(nc)
	}
	l := &line{nc, br, stomp.Decoder{Version: stomp.V12}}
	text := "CONNECT\naccept-version:1.2\nhost:x\nroom:premiere\nticket:" + v.Ticket + "\n\n\x00"
	for _, topic := range []string{"admission", "rank", "timeout"} {
		text += "SUBSCRIBE\nid:" + topic + "\ndestination:/topic/" + topic + "/" + v.TicketID + "\n\n\x00"
	}
	if err := ws.WriteFrame(nc, ws.MaskFrame(ws.NewTextFrame([]byte(text)))); err != nil {
		nc.Close()
		return nil, err
	}
	for {
		f, _, err := l.next(time.Minute)
		if err != nil {
			nc.Close()
			return nil, err
		}
		if strings.Contains(string(f), `"rank"`) {
			return l, nil
		}
	}
}

// next returns the payload of the next frame, or the code of a close. Pings are answered, as a browser does, and are
// empty.
func (l *line) next(within time.Duration) (payload []byte, code ws.StatusCode, err error) {
	_ = l.nc.SetReadDeadline(time.Now().Add(within))
	for {
		h, err := ws.ReadHeader(l.br)
		if err != nil {
			return nil, 0, err
		}
		b := make([]byte, h.Length)
		if _, err := io.ReadFull(l.br, b); err != nil {
			return nil, 0, err
		}
		switch h.OpCode {
		case ws.OpPing:
			if err := ws.WriteFrame(l.nc, ws.MaskFrame(ws.NewPongFrame(b))); err != nil {
				return nil, 0, err
			}
			return nil, 0, nil
		case ws.OpClose:
			code, _ := ws.ParseCloseFrameData(b)
			return b, code, nil
		default:
			return b, 0, nil
		}
	}
}

// The whole order of a stop: ready is 503 while all goes on, new ones included; then no more connections; then each is
// told when to come back, and closed with 1012; then the process ends.
func TestTheOrderOfAStop(t *testing.T) { // cases/push 15
	if testing.Short() {
		t.Skip("starts usher itself")
	}
	t.Parallel()
	u := run(t, "grace: 5m", "node: {drain: 60s}") // 10 s between ready and the rest
	dial := func() (net.Conn, error) { return net.Dial("tcp", u.public) }
	u.enter()
	const n = 20
	var lines []*line
	for range n {
		l, err := follow(dial, u.enter())
		if err != nil {
			t.Fatal(err)
		}
		defer l.nc.Close()
		lines = append(lines, l)
	}
	late := u.enter()
	ready := func() int {
		resp, err := http.Get("http://" + u.public + "/health/ready")
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := ready(); got != 200 {
		t.Fatalf("ready %d before the stop", got)
	}
	if err := u.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "ready 503", func() bool { return ready() == 503 })
	// What the balancer has not noticed yet is still served.
	l, err := follow(dial, late)
	if err != nil {
		t.Fatalf("a connection while ready is 503: %v", err)
	}
	defer l.nc.Close()
	lines = append(lines, l)
	slots := map[string]bool{}
	for i, l := range lines {
		soon := ""
		for {
			b, code, err := l.next(90 * time.Second)
			if err != nil {
				t.Fatalf("connection %d of %d was cut: %v", i, len(lines), err)
			}
			if strings.Contains(string(b), "RECONNECT_SOON") {
				soon = string(b[strings.Index(string(b), `"after_ms"`):])
			}
			if code != 0 {
				if code != 1012 || soon == "" {
					t.Errorf("connection %d: closed with %d, told %q before", i, code, soon)
				}
				break
			}
		}
		slots[soon] = true
		if i == 0 { // the drain has begun
			if l, err := follow(dial, late); err == nil {
				l.nc.Close()
				t.Error("it took on a connection during the drain")
			}
		}
		select {
		case <-u.ended:
			t.Fatalf("the process ended before connection %d was told", i)
		default:
		}
		l.nc.Close()
	}
	if len(slots) < n/2 {
		t.Errorf("%d slots for %d clients", len(slots), len(lines))
	}
	select {
	case <-u.ended:
	case <-time.After(90 * time.Second):
		t.Fatal("the process does not end")
	}
	if code := u.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit %d\n%s", code, u.log.String())
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}
