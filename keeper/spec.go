package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/gobwas/httphead"

	"github.com/ushergo/usher/lease"
)

// ErrBadRequest is wrapped by errors about a Spec; they name the field and the mend.
var ErrBadRequest = errors.New("keeper: bad request")

// Spec says what a connection is. Its JSON is the API's.
type Spec struct {
	// URL is ws:// or wss://. It is shown to whoever may list connections: secrets belong into Headers.
	URL string `json:"url"`
	// Headers go with the handshake. Nobody is shown them.
	Headers      map[string]string `json:"headers,omitempty"`
	Subprotocols []string          `json:"subprotocols,omitempty"`
	Desired      lease.Desired     `json:"desired"`
	Cursor       CursorRule        `json:"cursor"`
	Resume       Resume            `json:"resume"`
}

// CursorRule says where messages have their number.
type CursorRule struct {
	// JSON is the path of a whole number in each message, 0 to 2^63 - 1 and growing, as "seq" or "meta.seq". Empty: the
	// keeper numbers messages as they come, and cannot tell a repeated one.
	JSON string `json:"json,omitempty"`
	// Start is the cursor of a new connection: nothing up to it is asked for. Default 0.
	Start int64 `json:"start,omitempty"`
}

// Resume says how the upstream is told from where to go on. In each text {cursor} is the number of the last message
// stored, {next} that plus one, {fence} the lease's fence and {id} the connection's id.
type Resume struct {
	Query   string            `json:"query,omitempty"`   // added to the URL's query
	Headers map[string]string `json:"headers,omitempty"` // of the handshake
	Message string            `json:"message,omitempty"` // the first message, text
}

// Bounds of a Spec.
const (
	maxHeaders     = 64
	maxHeaderBytes = 16 << 10
	maxMessage     = 8 << 10
)

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadRequest}, args...)...)
}

// Check says what is wrong with a Spec.
func (s *Spec) Check() error {
	if err := checkURL(s.URL); err != nil {
		return err
	}
	if s.Desired != lease.Started && s.Desired != lease.Stopped {
		return bad(`desired is %q, must be "started" or "stopped"`, s.Desired)
	}
	if len(s.Subprotocols) > 16 {
		return bad("subprotocols: at most 16, not %d", len(s.Subprotocols))
	}
	for _, p := range s.Subprotocols {
		if !token(p) || len(p) > 128 {
			return bad("subprotocols: %q is no token of at most 128 characters", p)
		}
	}
	for field, h := range map[string]map[string]string{"headers": s.Headers, "resume.headers": s.Resume.Headers} {
		if err := checkHeaders(field, h); err != nil {
			return err
		}
	}
	return s.checkNumbers()
}

func (s *Spec) checkNumbers() error {
	switch r := s.Resume; {
	case s.Cursor.Start < 0:
		return bad("cursor.start is %d, must be 0 or more", s.Cursor.Start)
	case len(s.Cursor.JSON) > 256 || s.Cursor.JSON != "" && (strings.HasPrefix(s.Cursor.JSON, ".") || strings.HasSuffix(s.Cursor.JSON, ".") || strings.Contains(s.Cursor.JSON, "..")):
		return bad(`cursor.json is %q; write the path of the number, as "seq" or "meta.seq"`, s.Cursor.JSON)
	case len(r.Query) > 1024 || strings.ContainsAny(r.Query, "#\r\n\x00 "):
		return bad(`resume.query must be at most 1024 characters without space and #, as "from={cursor}&fence={fence}"`)
	case len(r.Message) > maxMessage:
		return bad("resume.message is %d bytes, at most %d", len(r.Message), maxMessage)
	}
	for _, word := range braces.FindAllString(s.Resume.Query, -1) {
		if word != "{cursor}" && word != "{next}" && word != "{fence}" && word != "{id}" {
			return bad("resume.query names %s; it may name {cursor}, {next}, {fence} and {id}", word)
		}
	}
	for field, text := range map[string]string{"resume.query": s.Resume.Query, "resume.message": s.Resume.Message} {
		if strings.ContainsRune(text, 0) {
			return bad("%s holds a zero byte", field)
		}
	}
	if s.Cursor.JSON == "" && (uses(s.Resume, "{cursor}") || uses(s.Resume, "{next}")) {
		return bad(`resume names {cursor} and cursor.json is missing: say where messages have their number, as "cursor":{"json":"seq"}`)
	}
	return nil
}

var braces = regexp.MustCompile(`\{[^{}]*\}`)

func uses(r Resume, what string) bool {
	if strings.Contains(r.Query, what) || strings.Contains(r.Message, what) {
		return true
	}
	for _, v := range r.Headers {
		if strings.Contains(v, what) {
			return true
		}
	}
	return false
}

func checkURL(text string) error {
	const mend = "write it as wss://feed.example.com/v1/stream"
	if text == "" {
		return bad("url is missing; %s", mend)
	}
	if len(text) > lease.MaxURL {
		return bad("url is %d bytes, at most %d", len(text), lease.MaxURL)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || strings.ContainsAny(text, "\r\n\x00 "):
		return bad("url is no URL; %s", mend) // err may quote a secret
	case u.Scheme != "ws" && u.Scheme != "wss":
		return bad("url has the scheme %q, must be ws or wss; %s", u.Scheme, mend)
	case u.Hostname() == "":
		return bad("url has no host; %s", mend)
	case u.User != nil:
		return bad("url holds a user name or password; give them in headers, as Authorization")
	case u.Fragment != "":
		return bad("url holds a fragment (#…), which no server sees; leave it out")
	}
	return nil
}

func checkHeaders(field string, h map[string]string) error {
	if len(h) > maxHeaders {
		return bad("%s: at most %d, not %d", field, maxHeaders, len(h))
	}
	n := 0
	for k, v := range h {
		n += len(k) + len(v)
		switch low := strings.ToLower(k); {
		case !token(k):
			return bad("%s: %q is no name of a header", field, k)
		case strings.HasPrefix(low, "sec-websocket-"), low == "upgrade", low == "connection", low == "host", low == "content-length", low == "transfer-encoding":
			return bad("%s: %s belongs to the handshake; leave it out (subprotocols have a field of their own)", field, k)
		case strings.ContainsAny(v, "\r\n\x00"):
			return bad("%s: the value of %s holds a line break", field, k)
		}
	}
	if n > maxHeaderBytes {
		return bad("%s: %d bytes, at most %d", field, n, maxHeaderBytes)
	}
	return nil
}

func token(s string) bool {
	for i := range len(s) {
		if !httphead.OctetTypes[s[i]].IsToken() {
			return false
		}
	}
	return s != ""
}

// kept is what of a Spec is in lease.Row.Spec; the rest has fields of its own there.
type kept struct {
	Headers      map[string]string `json:"headers,omitempty"`
	Subprotocols []string          `json:"subprotocols,omitempty"`
	Cursor       CursorRule        `json:"cursor"`
	Resume       Resume            `json:"resume"`
}

// Put is the command that keeps a Spec under an id. It checks the Spec.
func (s *Spec) Put(id string) (lease.Put, error) {
	if err := s.Check(); err != nil {
		return lease.Put{}, err
	}
	spec, err := json.Marshal(kept{s.Headers, s.Subprotocols, s.Cursor, s.Resume})
	if err != nil {
		return lease.Put{}, err
	}
	if len(spec) > lease.MaxSpec {
		return lease.Put{}, bad("the connection's headers and resume are %d bytes together, at most %d", len(spec), lease.MaxSpec)
	}
	return lease.Put{ID: id, Desired: s.Desired, URL: s.URL, Spec: spec, Cursor: formatSeq(s.Cursor.Start)}, nil
}

// SpecOf reads a Spec back from a row.
func SpecOf(url string, desired lease.Desired, spec []byte) (Spec, error) {
	var k kept
	if len(spec) > 0 {
		if err := json.Unmarshal(spec, &k); err != nil {
			return Spec{}, fmt.Errorf("the row's spec is not of this version: %w; PUT the connection again", err)
		}
	}
	return Spec{URL: url, Headers: k.Headers, Subprotocols: k.Subprotocols, Desired: desired, Cursor: k.Cursor, Resume: k.Resume}, nil
}
