package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"
)

// peer is one of this program's own servers: role, address, and for proxies the origin.
func peer(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("peer needs a role and an address")
	}
	var h http.Handler
	switch args[0] {
	case "raw":
		h = jsonHandler(false)
	case "reading":
		h = jsonHandler(true)
	case "origin":
		h = originHandler()
	case "reverse", "reverse-default":
		u, err := url.Parse(args[2])
		if err != nil {
			return err
		}
		h = reverse(u, args[0] == "reverse")
	default:
		return fmt.Errorf("unknown role %q", args[0])
	}
	s := &http.Server{Addr: args[1], Handler: h, ReadHeaderTimeout: 10 * time.Second}
	return s.ListenAndServe()
}

// enterAnswer has the shape and size of a waiting visitor's answer.
type enterAnswer struct {
	Room          string `json:"room"`
	TicketID      string `json:"ticket_id"`
	Ticket        string `json:"ticket"`
	State         string `json:"state"`
	Seq           uint64 `json:"seq"`
	Pos           uint64 `json:"pos"`
	Place         int64  `json:"place"`
	Waiting       int64  `json:"waiting"`
	ETA           *eta   `json:"eta"`
	PollAfter     int64  `json:"poll_after_ms"`
	PresenceAfter int64  `json:"presence_after_ms"`
	RoomState     string `json:"room_state"`
	Message       string `json:"message"`
	At            string `json:"at"`
	Admission     *int   `json:"admission"`
}

type eta struct {
	LowS  int64  `json:"low_s"`
	HighS int64  `json:"high_s"`
	Basis string `json:"basis"`
}

// jsonHandler does nothing but answer; reading: it decodes the request's body first, as any such handler would.
func jsonHandler(reading bool) http.Handler {
	mux := http.NewServeMux()
	answer := enterAnswer{Room: "main", TicketID: strings.Repeat("a", 26), Ticket: strings.Repeat("b", 75), State: "waiting", Seq: 123456, Pos: 123456,
		Place: 123455, Waiting: 123455, ETA: &eta{510, 690, "measured"}, PollAfter: 15000, PresenceAfter: 100000, RoomState: "open", At: "2026-01-02T03:04:05.678Z"}
	mux.HandleFunc("POST /.usher/v1/rooms/{room}/enter", func(w http.ResponseWriter, r *http.Request) {
		if reading {
			var body struct {
				RequestID string `json:"request_id"`
			}
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusAccepted)
		json.NewEncoder(w).Encode(&answer)
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {})
	return mux
}

// originHandler is the site behind the proxies: one kilobyte.
func originHandler() http.Handler {
	page := strings.Repeat("seat ", 205)[:1024]
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Content-Length", "1024")
		io.WriteString(w, page)
	})
}

// reverse is a ReverseProxy alone. Tuned: enough idle connections for the load, and buffers that are kept.
func reverse(u *url.URL, tuned bool) http.Handler {
	p := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); r.SetXForwarded() }}
	if tuned {
		p.Transport = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConns:        1024,
			MaxIdleConnsPerHost: 512,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		}
		p.BufferPool = make(buffers, 512)
	}
	return p
}

type buffers chan []byte

func (b buffers) Get() []byte {
	select {
	case buf := <-b:
		return buf
	default:
		return make([]byte, 32<<10)
	}
}

func (b buffers) Put(buf []byte) {
	select {
	case b <- buf:
	default:
	}
}
