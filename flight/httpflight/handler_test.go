package httpflight_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/flight"
	"github.com/ushergo/usher/flight/httpflight"
)

// site is an origin behind a reverse proxy behind a Collapser, all real.
type site struct {
	t        *testing.T
	url      string
	c        collapser
	requests atomic.Int64
	gate     chan struct{} // the origin answers when it may receive
	client   *http.Client
}

type collapser interface {
	Stats() httpflight.Stats
	Close(context.Context) error
}

// viaTransport is set while the tests run a second time, with the requests shared behind the proxy.
var viaTransport bool

func TestThroughTransport(t *testing.T) {
	viaTransport = true
	defer func() { viaTransport = false }()
	for name, test := range map[string]func(*testing.T){
		"EqualRequestsAreOne": TestEqualRequestsAreOne, "CredentialsPassBy": TestCredentialsPassBy,
		"Unshareable": TestUnshareableResponsesAreEachClientsOwn, "StreamsToAll": TestStreamsToAll,
		"FillGoesOn": TestFillGoesOnWhenTheFirstClientGoes, "BackOff": TestFailuresAreSharedAndBackOff,
		"TimeoutAndBusy": TestTimeoutAndBusy, "Broken": TestBrokenResponseIsNotTakenForWhole, "LongBody": TestLongBody,
		"Memory": TestMemoryIsBounded, "SlowClient": TestSlowClientDelaysNoOther, "Trailers": TestTrailers, "Change": TestChangePartsWhatIsUnderWay,
		"ChosenQuery": TestChosenQuery, "Closed": TestClosedAnswers503,
	} {
		t.Run(name, test)
	}
}

// refuse is how a proxy in front of a Tripper tells its clients.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	status, code, retry, _ := httpflight.Refusal(err)
	if retry > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(int((retry+time.Second-1)/time.Second)))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"code": code})
}

func newSite(t *testing.T, opts httpflight.Options, origin http.HandlerFunc) *site {
	s := &site{t: t, gate: make(chan struct{}, 10_000)}
	org := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		origin(w, r)
	}))
	quiet := log.New(io.Discard, "", 0)
	org.Config.ErrorLog = quiet
	org.Start()
	u, _ := url.Parse(org.URL)
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.ErrorLog = quiet
	tr := &http.Transport{MaxIdleConnsPerHost: 1000}
	proxy.Transport = tr
	var handler http.Handler
	if viaTransport {
		c := httpflight.Transport(tr, opts)
		proxy.Transport, proxy.ErrorHandler = c, refuse
		s.c, handler = c, proxy
	} else {
		c := httpflight.Handler(proxy, opts)
		s.c, handler = c, c
	}
	front := httptest.NewUnstartedServer(handler)
	front.Config.ErrorLog = quiet
	front.Start()
	s.url = front.URL
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}}
	t.Cleanup(func() {
		close(s.gate) // a test that has failed leaves nobody waiting
		s.client.CloseIdleConnections()
		front.Close()
		tr.CloseIdleConnections()
		org.Close()
	})
	return s
}

func (s *site) open(n int) {
	for range n {
		s.gate <- struct{}{}
	}
}

type reply struct {
	*http.Response
	body string
	err  error
}

func (s *site) get(path string, header ...string) reply {
	return s.do(context.Background(), "GET", path, header...)
}

func (s *site) do(ctx context.Context, method, path string, header ...string) reply {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, nil)
	if err != nil {
		s.t.Error(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	res, err := s.client.Do(r)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res, string(b), err}
}

// all sends n equal requests at once and waits until they are together under way.
func (s *site) all(n int, path string, header ...string) func() []reply {
	out := make([]reply, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { out[i] = s.get(path, header...) })
	}
	return func() []reply { wg.Wait(); return out }
}

// until polls for a condition.
func (s *site) until(what string, cond func() bool) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not in 20 s: %s; stats %+v", what, s.c.Stats())
		}
	}
}

func (s *site) waiters(n int) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d waiters", n), func() bool { return s.c.Stats().Waiters >= n })
}

func (s *site) asked(n int64) {
	s.t.Helper()
	if got := s.requests.Load(); got != n {
		s.t.Errorf("the origin got %d requests, want %d", got, n)
	}
}

func TestEqualRequestsAreOne(t *testing.T) {
	var s *site
	s = newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		<-s.gate
		w.Header().Set("X-Origin", "yes")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, "%s %s", r.Method, r.URL)
	})
	wait := s.all(100, "/a?b=c")
	s.waiters(100)
	s.open(1)
	for _, r := range wait() {
		if r.err != nil || r.StatusCode != 404 || r.body != "GET /a?b=c" || r.Header.Get("X-Origin") != "yes" {
			t.Errorf("got %+v", r)
		}
	}
	s.asked(1)
	// Every one of these differs.
	s.open(10)
	wg := sync.WaitGroup{}
	for _, h := range [][]string{
		{"/a?b=d"}, {"/A?b=c"}, {"/%61?b=c"}, {"/a?b=c", "Accept-Language", "de"}, {"/a?b=c", "Accept", "text/html"},
		{"/a?b=c", "If-None-Match", `"x"`}, {"/a?b=c", "X-Forwarded-Proto", "https"},
	} {
		wg.Go(func() { s.get(h[0], h[1:]...) })
	}
	wg.Go(func() {
		if r := s.do(context.Background(), "HEAD", "/a?b=c"); r.err != nil || r.body != "" || r.StatusCode != 404 {
			t.Errorf("HEAD got %+v", r)
		}
	})
	wg.Wait()
	s.asked(9)
}

func TestCredentialsPassBy(t *testing.T) { // cases/flight 14
	opts := httpflight.Options{PrincipalHeader: "X-User", IgnoreCookies: []string{"_ga*", "lang"}}
	var s *site
	s = newSite(t, opts, func(w http.ResponseWriter, r *http.Request) {
		<-s.gate
		fmt.Fprint(w, r.Header.Get("Authorization"), r.Header.Get("Cookie"), r.Header.Get("X-User"))
	})
	mine := [][]string{{"Authorization", "ann"}, {"Authorization", "bob"}, {"Cookie", "id=ann"}, {"Cookie", "id=bob"},
		{"Cookie", "lang=en; id=cyd"}, {"Cookie", "_ga=1", "Cookie", "id=dan"}}
	var wg sync.WaitGroup
	for _, h := range mine {
		wg.Go(func() {
			want := strings.ReplaceAll(strings.Join(append([]string{}, h...), " "), "Cookie _ga=1 Cookie", "_ga=1;")
			_, want, _ = strings.Cut(want, " ")
			if h[1] == "_ga=1" {
				want = ""
			}
			if r := s.get("/", h...); r.err != nil || want != "" && r.body != want {
				t.Errorf("%v got %q, %v", h, r.body, r.err)
			}
		})
	}
	s.until("each for herself", func() bool { return s.requests.Load() == 6 })
	s.open(6)
	wg.Wait()

	// Told whose they are, equal ones are shared, and only those.
	a := s.all(10, "/", "X-User", "ann", "Authorization", "token")
	b := s.all(10, "/", "X-User", "bob", "Authorization", "token")
	s.waiters(20)
	s.open(2)
	for _, r := range a() {
		if r.body != "tokenann" {
			t.Errorf("ann got %q, %v", r.body, r.err)
		}
	}
	for _, r := range b() {
		if r.body != "tokenbob" {
			t.Errorf("bob got %q, %v", r.body, r.err)
		}
	}
	s.asked(8)

	// Cookies that do not count are not shown to the origin.
	var c []func() []reply
	for i := range 5 {
		c = append(c, s.all(1, "/", "Cookie", fmt.Sprintf("_ga=%d; lang=x%d", i, i)))
	}
	s.waiters(5)
	s.open(1)
	for _, wait := range c {
		if r := wait()[0]; r.body != "" || r.err != nil {
			t.Errorf("the origin saw %q, %v", r.body, r.err)
		}
	}
	s.asked(9)
}

func TestUnshareableResponsesAreEachClientsOwn(t *testing.T) { // cases/flight 16
	for name, header := range map[string][2]string{
		"private":   {"Cache-Control", "max-age=5, Private"},
		"no-store":  {"Cache-Control", "no-store"},
		"field":     {"Cache-Control", `private="Set-Cookie"`},
		"cookie":    {"Set-Cookie", "id=1"},
		"vary":      {"Vary", "Accept, User-Agent"},
		"vary star": {"Vary", "*"},
		"events":    {"Content-Type", "text/event-stream; charset=utf-8"},
		"session":   {"Usher-Session", "end"},
		"broken":    {"Cache-Control", `max-age="5`},
	} {
		t.Run(name, func(t *testing.T) {
			var n, now, most atomic.Int64
			var s *site
			s = newSite(t, httpflight.Options{Concurrency: 5}, func(w http.ResponseWriter, r *http.Request) {
				c := now.Add(1)
				for m := most.Load(); c > m && !most.CompareAndSwap(m, c); m = most.Load() {
				}
				<-s.gate
				w.Header().Set(header[0], header[1])
				fmt.Fprint(w, n.Add(1))
				now.Add(-1)
			})
			wait := s.all(20, "/")
			s.waiters(20)
			s.open(1)
			s.until("let go", func() bool { return s.requests.Load() >= 6 }) // not one by one: as many as the budget allows
			s.open(100)
			seen := map[string]bool{}
			for _, r := range wait() {
				if r.err != nil || r.StatusCode != 200 || seen[r.body] || r.Header.Get(header[0]) != header[1] {
					t.Errorf("got %+v", r)
				}
				seen[r.body] = true
			}
			if m := most.Load(); m > 5 {
				t.Errorf("%d at once at the origin", m)
			}
			s.asked(20)
		})
	}
	// And these are shared.
	var s *site
	s = newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		<-s.gate
		w.Header().Set("Vary", "accept-encoding, Accept")
		w.Header().Set("Cache-Control", `public, max-age=1, x="private, no-store"`)
	})
	wait := s.all(20, "/")
	s.waiters(20)
	s.open(20)
	wait()
	s.asked(1)
}

func TestStreamsToAll(t *testing.T) {
	step := make(chan string)
	s := newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		for part := range step {
			if part == "end" {
				return
			}
			io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
	})
	type client struct {
		res *http.Response
		r   *bufio.Reader
	}
	begin := func() client {
		res, err := s.client.Get(s.url)
		if err != nil {
			t.Fatal(err)
		}
		return client{res, bufio.NewReader(res.Body)}
	}
	line := func(c client, want string) {
		t.Helper()
		if got, err := c.r.ReadString('\n'); err != nil || got != want {
			t.Errorf("read %q, %v; want %q", got, err, want)
		}
	}
	first := make(chan client)
	for range 3 {
		go func() { first <- begin() }()
	}
	s.waiters(3)
	step <- "one\n"
	var cs []client
	for range 3 {
		c := <-first
		line(c, "one\n") // before the origin has gone on
		cs = append(cs, c)
	}
	late := begin() // gets it from its start
	line(late, "one\n")
	cs = append(cs, late)
	cs[0].res.Body.Close() // the first client goes
	step <- "two\n"
	step <- "end"
	for _, c := range cs[1:] {
		line(c, "two\n")
		if b, err := io.ReadAll(c.r); len(b) != 0 || err != nil {
			t.Errorf("then %q, %v", b, err)
		}
		c.res.Body.Close()
	}
	s.asked(1)
	s.until("budget back", func() bool { return s.c.Stats().Running == 0 })
}

func TestFillGoesOnWhenTheFirstClientGoes(t *testing.T) { // cases/flight 2
	for _, policy := range []string{"finish", "cancel"} {
		cancelled := make(chan bool, 1)
		var s *site
		s = newSite(t, httpflight.Options{OnLeave: policy}, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-s.gate:
				fmt.Fprint(w, "filled")
			case <-r.Context().Done():
				cancelled <- true
			}
		})
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan struct{})
		go func() { s.do(ctx, "GET", "/"); close(gone) }()
		s.until("asked", func() bool { return s.requests.Load() == 1 })
		cancel()
		<-gone
		s.until("left", func() bool { return s.c.Stats().Waiters == 0 })
		if policy == "cancel" {
			<-cancelled
			continue
		}
		wait := s.all(1, "/")
		s.waiters(1)
		s.open(1)
		if r := wait()[0]; r.body != "filled" {
			t.Errorf("got %q, %v", r.body, r.err)
		}
		s.asked(1)
	}
}

func TestFailuresAreSharedAndBackOff(t *testing.T) { // cases/flight 10
	status := http.StatusBadGateway
	var s *site
	s = newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		<-s.gate
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(status)
		fmt.Fprint(w, "sorry")
	})
	s.open(100)
	status = http.StatusServiceUnavailable
	wait := s.all(1, "/")
	if r := wait()[0]; r.StatusCode != 503 || r.body != "sorry" {
		t.Errorf("got %+v", r)
	}
	for range 50 {
		r := s.get("/")
		var p struct{ Code string }
		if json.Unmarshal([]byte(r.body), &p) != nil || r.StatusCode != 503 || p.Code != "origin_failing" || r.Header.Get("Retry-After") != "120" ||
			r.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("got %v %q %v", r.Response, r.body, r.err)
		}
	}
	s.asked(1)
	if r := s.get("/other"); r.body != "sorry" { // another key is no concern
		t.Errorf("got %q", r.body)
	}
	s.asked(2)
}

func TestTimeoutAndBusy(t *testing.T) {
	var s *site
	s = newSite(t, httpflight.Options{Timeout: 2 * time.Second, Concurrency: 1, MaxPending: 1}, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.gate:
		case <-r.Context().Done():
		}
	})
	wait := s.all(3, "/slow")
	s.waiters(3)
	pend := s.all(1, "/pending")
	s.waiters(4)
	if r := s.get("/refused"); r.StatusCode != 503 || !strings.Contains(r.body, "origin_busy") || r.Header.Get("Retry-After") != "1" {
		t.Errorf("got %v %q", r.Response, r.body)
	}
	for _, r := range wait() {
		if r.StatusCode != 504 || !strings.Contains(r.body, "origin_timeout") {
			t.Errorf("got %v %q", r.Response, r.body)
		}
	}
	pend()
}

func TestBrokenResponseIsNotTakenForWhole(t *testing.T) {
	var s *site
	s = newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/before" {
			<-s.gate
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		<-s.gate
		panic(http.ErrAbortHandler)
	})
	wait := s.all(5, "/after")
	s.until("five told", func() bool { st := s.c.Stats(); return st.Calls == 5 && st.Waiters == 0 })
	s.open(1)
	for _, r := range wait() {
		if r.err == nil || !strings.HasPrefix("half", r.body) {
			t.Errorf("got %q, %v: a whole response", r.body, r.err)
		}
	}
	s.asked(1)
	wait = s.all(5, "/before")
	s.waiters(5)
	s.open(1)
	for _, r := range wait() {
		if r.err != nil || r.StatusCode != http.StatusBadGateway { // the proxy's answer
			t.Errorf("got %+v", r)
		}
	}
}

func TestPanicBehindIsA502(t *testing.T) { // cases/flight 6
	c := httpflight.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpflight.Shared(r.Context()) {
			t.Error("not marked as shared")
		}
		if r.URL.Path == "/abort" {
			panic(http.ErrAbortHandler)
		}
		panic("a bug")
	}), httpflight.Options{})
	var logged bytes.Buffer
	ctx := context.WithValue(context.Background(), http.ServerContextKey, &http.Server{ErrorLog: log.New(&logged, "", 0)})
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
	if w.Code != 502 || !strings.Contains(w.Body.String(), "origin_error") || strings.Contains(w.Body.String(), "bug") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if !strings.Contains(logged.String(), "a bug") {
		t.Errorf("logged %q", &logged)
	}
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("panicked with %v", p)
		}
	}()
	c.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/abort", nil))
}

func TestLongBody(t *testing.T) {
	const size, limit = 3 << 20, 64 << 10
	body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	for _, length := range []bool{true, false} { // told by Content-Length, or found out
		var s *site
		s = newSite(t, httpflight.Options{MaxBody: limit, SlowClient: 300 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
			<-s.gate
			if length {
				w.Header().Set("Content-Length", fmt.Sprint(size))
			}
			w.Write(body)
		})
		wait := s.all(5, "/")
		s.waiters(5)
		s.open(100)
		for _, r := range wait() {
			if r.err != nil || r.body != string(body) {
				t.Errorf("length told %v: got %d bytes, %v", length, len(r.body), r.err)
			}
		}
		s.until("budget back", func() bool { return s.c.Stats().Running == 0 })
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const size, clients, most = 16 << 20, 10, 4 << 20 // more than the sockets take
	body := bytes.Repeat([]byte("x"), size)
	s := newSite(t, httpflight.Options{MaxMemory: most, MaxBody: 2 * size}, func(w http.ResponseWriter, r *http.Request) { w.Write(body) })
	var all []*http.Response
	for i := range clients { // each for a page of her own, and none reads
		res, err := s.client.Get(fmt.Sprintf("%s/%d", s.url, i))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		all = append(all, res)
		if h := s.c.Stats().Held; h > most+int64(clients)*(128<<10) {
			t.Fatalf("%d bytes are held for %d clients", h, i)
		}
	}
	for i, res := range all {
		if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
			t.Errorf("client %d got %d bytes, %v", i, n, err)
		}
		res.Body.Close()
	}
	s.until("nothing is held", func() bool { return s.c.Stats().Held == 0 })
}

func TestSlowClientDelaysNoOther(t *testing.T) {
	const size, limit = 16 << 20, 64 << 10 // more than any socket buffer takes
	chunk := bytes.Repeat([]byte("x"), 32<<10)
	var s *site
	s = newSite(t, httpflight.Options{MaxBody: limit, SlowClient: 2 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
		<-s.gate
		for range size / len(chunk) {
			w.Write(chunk)
		}
	})
	slow := make(chan *http.Response)
	go func() {
		res, err := s.client.Get(s.url)
		if err != nil {
			t.Error(err)
		}
		slow <- res
	}()
	wait := s.all(3, "/")
	s.waiters(4)
	s.open(1)
	res := <-slow // and does not read
	for _, r := range wait() {
		if r.err != nil || len(r.body) != size {
			t.Errorf("got %d bytes, %v", len(r.body), r.err)
		}
	}
	if n, err := io.Copy(io.Discard, res.Body); err == nil && n != size {
		t.Errorf("the slow one took %d bytes for all", n)
	}
	res.Body.Close()
	s.asked(1)
}

func TestTrailers(t *testing.T) {
	var s *site
	s = newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		<-s.gate
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "43")
	})
	wait := s.all(3, "/")
	s.waiters(3)
	s.open(1)
	for _, r := range wait() {
		if r.body != "body" || r.Trailer.Get("X-Sum") != "42" || r.Trailer.Get("X-Late") != "43" {
			t.Errorf("got %q, %v, trailer %v", r.body, r.err, r.Trailer)
		}
	}
}

func TestChangePartsWhatIsUnderWay(t *testing.T) { // cases/flight 8
	var version atomic.Int64
	var s *site
	s = newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "GET" {
			version.Add(1)
			w.Header().Set("Location", "/list")
			return
		}
		v := version.Load()
		<-s.gate
		fmt.Fprint(w, v)
	})
	for _, path := range []string{"/thing", "/list"} {
		version.Store(0)
		n := s.requests.Load()
		before := s.all(1, path)
		s.until("under way", func() bool { return s.requests.Load() == n+1 })
		s.do(context.Background(), "POST", "/thing")
		after := s.all(1, path)
		s.until("queued", func() bool { return s.c.Stats().Queued == 1 })
		s.open(2)
		if b, a := before()[0].body, after()[0].body; b != "0" || a != "1" {
			t.Errorf("%s: before got %s, after got %s", path, b, a)
		}
	}
}

func TestChosenQuery(t *testing.T) {
	var s *site
	s = newSite(t, httpflight.Options{Query: []string{"page", "sort"}}, func(w http.ResponseWriter, r *http.Request) {
		<-s.gate
		fmt.Fprint(w, r.URL.Query().Get("page"))
	})
	var wg sync.WaitGroup
	for i, q := range []string{"page=1&utm=a", "utm=b&page=1", "page=1", "sort=&page=1", "page=1&page=2", "page=2", "page=1;x"} {
		wg.Go(func() {
			if r := s.get("/?" + q); r.err != nil {
				t.Errorf("%d: %v", i, r.err)
			}
		})
	}
	s.until("all there", func() bool { st := s.c.Stats(); return st.Waiters+int(st.Passed) == 7 })
	s.open(7)
	wg.Wait()
	s.asked(5) // three are one; the last cannot be read and passes by
}

func TestClosedAnswers503(t *testing.T) {
	s := newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {})
	if err := s.c.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if r := s.get("/"); r.StatusCode != 503 || !strings.Contains(r.body, "shutting_down") {
		t.Errorf("got %v %q", r.Response, r.body)
	}
}

func TestOnError(t *testing.T) {
	s := newSite(t, httpflight.Options{OnError: func(w http.ResponseWriter, r *http.Request, status int, code string, err error) {
		w.WriteHeader(418)
		fmt.Fprintln(w, status, code, err == flight.ErrClosed)
	}}, func(w http.ResponseWriter, r *http.Request) {})
	s.c.Close(context.Background())
	if r := s.get("/"); r.StatusCode != 418 || r.body != "503 shutting_down true\n" {
		t.Errorf("got %v %q", r.Response, r.body)
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	for key, o := range map[string]httpflight.Options{
		"headers":          {Headers: []string{"Accept "}},
		"ignore_cookies":   {Headers: []string{"cookie"}},
		"principal_header": {PrincipalHeader: "X User"},
		"query":            {Query: []string{""}},
		"on_leave":         {OnLeave: "stay"},
		"backoff":          {Backoff: "maybe"},
		"max_body":         {MaxBody: -1},
		"per_second":       {PerSecond: -1},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "collapse.") || !strings.Contains(err.Error(), key) {
			t.Errorf("want an error that names %s, got %v", key, err)
		}
	}
	if err := (httpflight.Options{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestTransportKeepsEachClientsOwn(t *testing.T) {
	var sent http.Header
	proceed := make(chan struct{})
	c := httpflight.Transport(roundTripper(func(r *http.Request) (*http.Response, error) {
		sent = r.Header
		<-proceed
		return &http.Response{StatusCode: 200, Header: http.Header{"X-Origin": {"o"}}, Body: io.NopCloser(strings.NewReader("body")), ContentLength: 4}, nil
	}), httpflight.Options{})
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			proxy := &httputil.ReverseProxy{
				Rewrite: func(r *httputil.ProxyRequest) {
					r.SetURL(&url.URL{Scheme: "http", Host: "origin.test"})
					r.Out.Header.Set("X-Usher-Ticket-Id", fmt.Sprint(i))
				},
				Transport: c,
				ModifyResponse: func(res *http.Response) error {
					res.Header.Set("Set-Cookie", fmt.Sprint("id=", i))
					return nil
				},
			}
			w := httptest.NewRecorder()
			proxy.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if h := w.Header(); h.Get("Set-Cookie") != fmt.Sprint("id=", i) || len(h["Set-Cookie"]) != 1 || w.Body.String() != "body" || h.Get("X-Origin") != "o" {
				t.Errorf("%d got %v %q", i, h, w.Body)
			}
		})
	}
	for end := time.Now().Add(20 * time.Second); c.Stats().Waiters < 10; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("they do not come")
		}
	}
	close(proceed)
	wg.Wait()
	if n := c.Stats().Loads; n != 1 {
		t.Errorf("%d requests", n)
	}
	if sent.Get("X-Usher-Ticket-Id") != "" {
		t.Error("the shared request names a client")
	}
}

func TestTransportErrorsBackOff(t *testing.T) {
	down := fmt.Errorf("connection refused")
	n := 0
	c := httpflight.Transport(roundTripper(func(r *http.Request) (*http.Response, error) { n++; return nil, down }), httpflight.Options{})
	ask := func() error {
		_, err := c.RoundTrip(httptest.NewRequest("GET", "http://origin.test/", nil))
		return err
	}
	if err := ask(); err != down {
		t.Errorf("got %v", err)
	}
	for range 20 {
		if status, _, _, _ := httpflight.Refusal(ask()); status != 503 && status != 502 {
			t.Errorf("status %d", status)
		}
	}
	if n > 10 { // 100 ms, 200 ms, …
		t.Errorf("%d requests to an origin that is down", n)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestOriginHearsThatAnUnshareableClientHasGone(t *testing.T) {
	gone := make(chan struct{}, 10)
	s := newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done() // and says no more
		gone <- struct{}{}
	})
	for range 2 { // the second time it is known not to be shareable
		res, err := s.client.Get(s.url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
			t.Error(err)
		}
		res.Body.Close()
		select {
		case <-gone:
		case <-time.After(20 * time.Second):
			t.Fatal("the origin was not told")
		}
	}
	// Nor does a request for one alone go on when she leaves before there is a header.
	s = newSite(t, httpflight.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("wait") == "" && s.requests.Load() == 1 {
			w.Header().Set("Cache-Control", "private")
			return
		}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	s.get("/")
	ctx, cancel := context.WithCancel(context.Background())
	go s.do(ctx, "GET", "/")
	s.until("asked", func() bool { return s.requests.Load() == 2 })
	cancel()
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Fatal("the origin was not told")
	}
}

func TestClosingABodyEndsItsReading(t *testing.T) {
	c := httpflight.Transport(roundTripper(func(r *http.Request) (*http.Response, error) {
		pr, pw := io.Pipe()
		context.AfterFunc(r.Context(), func() { pw.CloseWithError(r.Context().Err()) })
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: pr, ContentLength: -1}, nil
	}), httpflight.Options{})
	res, err := c.RoundTrip(httptest.NewRequest("GET", "http://origin.test/", nil))
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := res.Body.Read(make([]byte, 1))
		read <- err
	}()
	res.Body.Close()
	if err := <-read; err == nil {
		t.Error("read something")
	}
	if err := c.Close(context.Background()); err != nil { // the origin's side has ended too
		t.Error(err)
	}
}
