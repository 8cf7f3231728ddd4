package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// openHouse lets everybody in at once. The demo around it is what is tested; the
// room has tests of its own.
type openHouse struct {
	plan   Plan
	seq    atomic.Int64
	pub    *http.Server
	admin  *http.Server
	failed chan error
	closed atomic.Bool
}

func startOpenHouse(_ context.Context, p Plan) (Server, error) {
	h := &openHouse{plan: p, failed: make(chan error, 1)}
	origin, err := url.Parse(p.Origin)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/.usher/v1/rooms/premiere/{call}", func(w http.ResponseWriter, r *http.Request) {
		n := h.seq.Add(1)
		http.SetCookie(w, &http.Cookie{Name: "usher-premiere", Value: fmt.Sprint(n)})
		json.NewEncoder(w).Encode(map[string]any{"ticket_id": fmt.Sprint(n), "state": "admitted", "seq": n, "place": 0})
	})
	mux.Handle("/", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(origin); r.SetXForwarded() },
		ErrorLog: log.New(io.Discard, "", 0)})
	admin := http.NewServeMux()
	admin.HandleFunc("GET /admin/v1/rooms/premiere", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+p.AdminToken {
			w.WriteHeader(401)
			return
		}
		fmt.Fprintf(w, `{"config":{"id":"premiere"},"state":"open","active":3,"waiting":0,"limit":%d,"admitted_total":%d}`, p.Active, h.seq.Load())
	})
	admin.HandleFunc("GET /admin/v1/rooms/premiere/log", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("after") == "0" {
			fmt.Fprint(w, `{"events":[{"n":1,"type":"entered","data":{}},{"n":2,"type":"admitted","data":{}},{"n":3,"type":"expired","data":{"reason":"claim"}},
				{"n":4,"type":"expired","data":{"reason":"idle"}},{"n":5,"type":"abandoned","data":{}}],"next":5}`)
			return
		}
		fmt.Fprint(w, `{"events":[],"next":5}`)
	})
	h.pub, h.admin = &http.Server{Handler: mux}, &http.Server{Handler: admin}
	for addr, srv := range map[string]*http.Server{p.Public: h.pub, p.Admin: h.admin} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, err
		}
		go srv.Serve(ln)
	}
	return h, nil
}

func (h *openHouse) Failed() <-chan error { return h.failed }

func (h *openHouse) Close(context.Context) error {
	h.closed.Store(true)
	return errors.Join(h.pub.Close(), h.admin.Close())
}

// lines is a writer that hands over each line.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
	c   chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(p)
	select {
	case l.c <- string(p):
	default:
	}
	return len(p), nil
}

func TestRunFromStartToCtrlC(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	var house *openHouse
	ctx, ctrlC := context.WithCancel(t.Context())
	out, errs := &lines{c: make(chan string, 1000)}, &lines{}
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Visitors: 30, Active: 7, Speed: 20, Listen: taken.Addr().String(), Admin: "127.0.0.1:0"},
			Terminal{Out: out, Err: errs, Getenv: func(string) string { return "" }},
			func(ctx context.Context, p Plan) (Server, error) {
				s, err := startOpenHouse(ctx, p)
				house, _ = s.(*openHouse)
				return s, err
			})
	}()
	deadline := time.After(time.Minute)
	for found := false; !found; {
		select {
		case line := <-out.c:
			found = strings.Contains(line, "inside 3/7") && !strings.Contains(line, "sold 0 ")
		case err := <-done:
			t.Fatalf("it ended by itself: %v", err)
		case <-deadline:
			t.Fatalf("no figures:\n%s", out.all.String())
		}
	}
	ctrlC()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	text := out.all.String()
	for _, want := range []string{"is taken, so this uses", "open this  http://127.0.0.1:", "dashboard  http://127.0.0.1:", "/admin-token\n", "entered 1  admitted 1  left 0  abandoned 1  no-shows 1", "violations", "files are removed"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Error("escape sequences where there is no terminal")
	}
	if strings.Contains(text, house.plan.AdminToken) {
		t.Error("the admin token was printed")
	}
	if !house.closed.Load() {
		t.Error("the server was not closed")
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := net.Dial("tcp", house.plan.Public); err == nil {
		t.Error("the port is still open")
	}
}

func TestRunFailsWithAReasonAndCleansUp(t *testing.T) {
	good := Options{Visitors: 1, Active: 1, Speed: 1, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	refuses := func(context.Context, Plan) (Server, error) { return nil, errors.New("no room at the inn") }
	dies := func(ctx context.Context, p Plan) (Server, error) {
		s, err := startOpenHouse(ctx, p)
		if err == nil {
			s.(*openHouse).failed <- errors.New("disk full")
		}
		return s, err
	}
	for want, c := range map[string]struct {
		edit  func(*Options)
		start Starter
	}{
		"--visitors":         {func(o *Options) { o.Visitors = 0 }, refuses},
		"--active":           {func(o *Options) { o.Active = -1 }, refuses},
		"--speed":            {func(o *Options) { o.Speed = 0 }, refuses},
		"--listen":           {func(o *Options) { o.Listen = "8080" }, refuses},
		"--admin-listen":     {func(o *Options) { o.Admin = "127.0.0.1:http8" }, refuses},
		"no room at the inn": {func(*Options) {}, refuses},
		"disk full":          {func(*Options) {}, dies},
	} {
		tmp := t.TempDir()
		t.Setenv("TMPDIR", tmp)
		o := good
		c.edit(&o)
		out := &lines{}
		err := Run(t.Context(), o, Terminal{Out: out, Err: out, Getenv: func(string) string { return "" }}, c.start)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if left, _ := os.ReadDir(tmp); len(left) != 0 {
			t.Errorf("%s: left behind %v", want, left)
		}
	}
}
