package web_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// BenchmarkEnter is enter on the waiting path, by real connections, against a handler that does nothing. The
// bar of DESIGN §12 is the ratio of the two in one run; bench/ measures it with another process as client.
func BenchmarkEnter(b *testing.B) {
	s := build(b, nil, config("premiere", 1))
	s.enter("premiere")
	nothing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true}`)
	})
	for _, bc := range []struct {
		name string
		h    http.Handler
	}{{"nothing", nothing}, {"enter", s.server.Public()}} {
		b.Run(bc.name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			srv := &http.Server{Handler: bc.h}
			go func() { _ = srv.Serve(l) }()
			defer srv.Close()
			b.SetParallelism(64)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) { clientLoop(b, l.Addr().String(), pb.Next) })
		})
	}
}

// clientLoop posts over one connection. It reads as little as it can, so that the server is what is measured.
func clientLoop(b *testing.B, addr string, next func() bool) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		b.Error(err)
		return
	}
	defer conn.Close()
	req := []byte("POST /v1/rooms/premiere/enter HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nContent-Length: 0\r\n\r\n")
	buf := make([]byte, 4096)
	for next() {
		if _, err := conn.Write(req); err != nil {
			b.Error(err)
			return
		}
		for n := 0; ; { // both answers fit into the buffer and end with a brace
			k, err := conn.Read(buf[n:])
			if err != nil {
				b.Error(err)
				return
			}
			if n += k; bytes.HasSuffix(buf[:n], []byte("}")) {
				break
			}
		}
	}
}

// BenchmarkEnterHandler is the handler alone, for profiles.
func BenchmarkEnterHandler(b *testing.B) {
	s := build(b, nil, config("premiere", 1))
	s.enter("premiere")
	h := s.server.Public()
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", "/v1/rooms/premiere/enter", nil)
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusAccepted {
			b.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}
