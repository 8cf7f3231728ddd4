package svc

import (
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/gate"
)

// Options of New.
type Options struct {
	// Tokens open the API; each at least 16 characters. Default: none, and everybody is refused.
	Tokens []string
	// Gate serves /svc/v1/gates/. Default: none, and it answers 404.
	Gate *gate.Gate
	// Connections serves /svc/v1/connections/ and /svc/v1/keeper. Default: none, and they answer 404.
	Connections *Connections
	Logger      *slog.Logger // default: discards
}

// Server is the API. It serves every path below /svc/v1/.
type Server struct {
	opts   Options
	tokens [][32]byte
	mux    *http.ServeMux
}

//go:embed openapi.json
var openapiJSON []byte

// New makes the API.
func New(o Options) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{opts: o, mux: http.NewServeMux()}
	for i, t := range o.Tokens {
		if len(t) < 16 {
			return nil, fmt.Errorf("service.tokens[%d] is shorter than 16 characters; make one with: openssl rand -hex 24", i)
		}
		s.tokens = append(s.tokens, sha256.Sum256([]byte(t)))
	}
	s.mux.HandleFunc("GET /svc/v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openapiJSON)
	})
	if o.Gate != nil {
		s.gates()
	}
	if o.Connections != nil {
		s.connections()
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, &problem{status: 404, code: "not_found", detail: "there is nothing at " + r.URL.Path + "; see /svc/v1/openapi.json"})
	})
	return s, nil
}

// Handle adds another part of the API, behind the same tokens; pattern is http.ServeMux's.
func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// Mount puts the API, and with Connections the page /keeper, in front of next, which keeps every other path.
func (s *Server) Mount(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/svc/v1/") {
			s.ServeHTTP(w, r)
			return
		}
		if s.opts.Connections != nil && r.URL.Path == "/keeper" {
			keeperPage(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/svc/v1/openapi.json" && !s.allowed(r) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="usher services"`)
		fail(w, &problem{status: 401, code: "unauthorized", detail: "the service API asks for Authorization: Bearer and one of service.tokens"})
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) allowed(r *http.Request) bool {
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	ok := 0
	for i := range s.tokens { // all of them: the time says nothing
		ok |= subtle.ConstantTimeCompare(sum[:], s.tokens[i][:])
	}
	return ok == 1 && strings.EqualFold(kind, "Bearer")
}

// methods registers one path's methods and answers 405 to others.
func (s *Server) methods(path string, handlers map[string]http.HandlerFunc) {
	var allow []string
	for m, h := range handlers {
		s.mux.HandleFunc(m+" "+path, h)
		allow = append(allow, m)
	}
	slices.Sort(allow)
	list := strings.Join(allow, ", ")
	s.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", list)
		fail(w, &problem{status: 405, code: "method_not_allowed", detail: "use " + list})
	})
}

// problem is an RFC 9457 answer with a stable code.
type problem struct {
	status int
	code   string
	detail string
	retry  time.Duration
	more   map[string]any
}

func fail(w http.ResponseWriter, p *problem) {
	doc := map[string]any{"type": "about:blank", "title": http.StatusText(p.status), "status": p.status, "code": p.code, "detail": p.detail}
	for k, v := range p.more {
		doc[k] = v
	}
	if p.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((p.retry+time.Second-1)/time.Second)))
	}
	answer(w, p.status, "application/problem+json", doc)
}

func answer(w http.ResponseWriter, status int, kind string, doc any) {
	body, err := json.Marshal(doc)
	if err != nil { // our own types: cannot happen
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

const maxBody = 16 << 10

// read fills in to from the request's JSON body, which may be missing; problems name the field.
func read(w http.ResponseWriter, r *http.Request, to any) *problem {
	return readUpTo(w, r, to, maxBody)
}

func readUpTo(w http.ResponseWriter, r *http.Request, to any, most int64) *problem {
	bad := func(format string, args ...any) *problem {
		return &problem{status: 400, code: "bad_request", detail: fmt.Sprintf(format, args...)}
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, most))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	var large *http.MaxBytesError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &large):
		return &problem{status: 413, code: "too_large", detail: fmt.Sprintf("the body is over %d bytes", most)}
	case errors.As(err, &kind):
		return bad("%s is a JSON %s, must be %s", kind.Field, kind.Value, kind.Type)
	case err != nil:
		return bad("the body is not the JSON expected: %v", strings.TrimPrefix(err.Error(), "json: "))
	}
	if d.More() {
		return bad("the body goes on after its JSON object")
	}
	return nil
}
