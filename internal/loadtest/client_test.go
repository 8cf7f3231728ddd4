package loadtest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

func targetOf(t testing.TB, address string) *target {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return newTarget(u, "", true, 10*time.Second)
}

// serveRaw answers every connection with the given answers, one for each request, and then closes it.
func serveRaw(t *testing.T, answers ...string) *target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for _, a := range answers {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					io.WriteString(c, a)
				}
			}()
		}
	}()
	return targetOf(t, "http://"+l.Addr().String())
}

func TestAnswersOfEveryForm(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		status int
		body   string
		err    error
	}{
		"length":       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", nil},
		"chunks":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", 200, "hello", nil},
		"close":        {"HTTP/1.0 200 OK\r\n\r\nhello", 200, "hello", nil},
		"no content":   {"HTTP/1.1 204 No Content\r\n\r\n", 204, "", nil},
		"interim":      {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", 202, "", nil},
		"bare lines":   {"HTTP/1.1 200 OK\ncontent-length: 2\n\nok", 200, "ok", nil},
		"long header":  {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 9000) + "\r\nContent-Length: 2\r\n\r\nok", 200, "ok", nil},
		"cut short":    {"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", 0, "", io.ErrUnexpectedEOF},
		"cut chunk":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n30\r\nhel", 0, "", io.ErrUnexpectedEOF},
		"cut head":     {"HTTP/1.1 200 OK\r\nContent-Le", 0, "", io.ErrUnexpectedEOF},
		"not http":     {"SSH-2.0-OpenSSH_9.2\r\n", 0, "", errMalformed},
		"two lengths":  {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 0, "", errMalformed},
		"minus":        {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 0, "", errMalformed},
		"no colon":     {"HTTP/1.1 200 OK\r\nhello\r\n\r\n", 0, "", errMalformed},
		"gzip framing": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 0, "", errMalformed},
		"huge header":  {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 80<<10) + "\r\n\r\n", 0, "", errTooLarge},
		"many headers": {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n", 4000) + "\r\n", 0, "", errTooLarge},
		"huge body":    {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", 0, "", errTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := serveRaw(t, c.answer).conn()
			defer conn.close()
			resp, err := conn.do(&request{method: "GET", path: "/"})
			if c.err != nil {
				if !errors.Is(err, c.err) {
					t.Fatalf("got %v, want %v", err, c.err)
				}
				return
			}
			if err != nil || resp.status != c.status || string(resp.body) != c.body {
				t.Fatalf("got %d %q, %v", resp.status, resp.body, err)
			}
		})
	}
}

// A connection that the server closed while it was idle is replaced without an error.
func TestStaleConnectionIsReplaced(t *testing.T) {
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	conn := serveRaw(t, ok, ok).conn() // closes after two
	defer conn.close()
	for i := range 7 {
		if resp, err := conn.do(&request{method: "GET", path: "/"}); err != nil || string(resp.body) != "ok" {
			t.Fatalf("exchange %d: %q, %v", i, resp.body, err)
		}
	}
}

// A server that never answers is a timeout, and an interruption does not wait for it.
func TestSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tg := targetOf(t, "http://"+l.Addr().String())
	tg.timeout = 50 * time.Millisecond
	conn := tg.conn()
	if resp, err := conn.do(&request{method: "GET", path: "/"}); errorKind(resp, err) != "timeout" {
		t.Errorf("got %v", err)
	}
	tg.timeout = time.Hour
	failed := make(chan error, 1)
	go func() {
		_, err := conn.do(&request{method: "GET", path: "/"})
		failed <- err
	}()
	for tg.open() == 0 {
		time.Sleep(time.Millisecond) // polls until the exchange is under way
	}
	tg.interrupt()
	select {
	case err := <-failed:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(10 * time.Second):
		t.Error("the interruption waits for the server")
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	defer s.Close()
	conn := targetOf(t, s.URL).conn()
	defer conn.close()
	if resp, err := conn.do(&request{method: "GET", path: "/"}); err != nil || string(resp.body) != "HTTP/1.1" {
		t.Fatalf("%q, %v", resp.body, err)
	}
}

func TestEventStream(t *testing.T) {
	read := func(stream string) (types []string, err error) {
		err = events(context.Background(), bufio.NewReaderSize(strings.NewReader(stream), 64), func() error { return nil }, func(u Update) bool {
			types = append(types, u.Type)
			return u.Type != "admission"
		})
		return types, err
	}
	types, err := read(": hello\n\nevent: rank\nid: 3\ndata: {\"type\":\"rank\",\ndata: \"place\": 7}\n\n" +
		"data:{\"type\":\"stats\",\"message\":\"" + strings.Repeat("x", 500) + "\"}\r\n\r\ndata: {\"type\":\"admission\"}\n\ndata: {\"type\":\"rank\"}\n\n")
	if err != nil || strings.Join(types, " ") != "rank stats admission" {
		t.Errorf("%v, %v", types, err)
	}
	if _, err = read("data: {\"type\":\"RECONNECT_SOON\",\"after_ms\":1500}\n\n"); err == nil || err.(*errReconnect).after != 1500*time.Millisecond {
		t.Errorf("%v", err)
	}
	if _, err = read("data: nonsense\n\n"); !errors.Is(err, errMalformed) {
		t.Errorf("%v", err)
	}
	if _, err = read("data: " + strings.Repeat("x", keptBody+1)); !errors.Is(err, errTooLarge) {
		t.Errorf("%v", err)
	}
	if _, err = read("data: {\"ty"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

// BenchmarkClient compares this client's cost with net/http's, on one exchange as a waiting visitor makes it. The server
// is in the same process and its cost in both.
func BenchmarkClient(b *testing.B) {
	body := `{"room":"r","ticket_id":"t","state":"waiting","place":1234,"poll_after_ms":5000}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, body)
	}))
	defer s.Close()
	b.Run("ours", func(b *testing.B) {
		tg := targetOf(b, s.URL)
		b.SetParallelism(64)
		start := cpuSeconds()
		b.RunParallel(func(pb *testing.PB) {
			c := tg.conn()
			defer c.close()
			for pb.Next() {
				if resp, err := c.do(&request{method: "GET", path: "/status", ticket: "secret"}); err != nil || resp.status != 200 {
					b.Error(resp.status, err)
					return
				}
			}
		})
		b.ReportMetric((cpuSeconds()-start)*1e6/float64(b.N), "cpu-µs/op")
	})
	b.Run("net/http", func(b *testing.B) {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}}
		b.SetParallelism(64)
		start := cpuSeconds()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				req, _ := http.NewRequest("GET", s.URL+"/status", nil)
				req.Header.Set("Usher-Ticket", "secret")
				resp, err := client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
		b.ReportMetric((cpuSeconds()-start)*1e6/float64(b.N), "cpu-µs/op")
	})
	b.Run("server alone", func(b *testing.B) { // what to take off both: pipelined, so that the client costs next to nothing
		tg := targetOf(b, s.URL)
		b.SetParallelism(8)
		start := cpuSeconds()
		b.RunParallel(func(pb *testing.PB) {
			c, err := net.Dial("tcp", tg.addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			r := request{method: "GET", path: "/status", ticket: "secret"}
			batch, buf := []byte{}, make([]byte, 64<<10)
			for range 32 {
				batch = r.append(batch, tg.host)
			}
			for n := 0; pb.Next(); n++ {
				if n%32 == 0 {
					c.Write(batch)
					for got := 0; got < 32; {
						k, err := c.Read(buf)
						if err != nil {
							return
						}
						got += strings.Count(string(buf[:k]), "HTTP/1.1 200")
					}
				}
			}
		})
		b.ReportMetric((cpuSeconds()-start)*1e6/float64(b.N), "cpu-µs/op")
	})
}

// A stream that ends while its context does must not trip over the connection that is gone.
func TestStreamThatEndsTwice(t *testing.T) {
	tg := serveRaw(t, "HTTP/1.1 200 OK\r\n\r\ndata: {\"type\":\"rank\"}\n\n")
	s := &sse{tg, "r"}
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		err := s.Follow(ctx, "ticket", "", func(Update) bool {
			go cancel()
			return true
		})
		cancel()
		if err == nil {
			t.Fatal("no error")
		}
	}
}
