package web

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// What goes to an origin and back may take as long as it likes, so the listener sets it no time. But a visitor who
// stops in the middle would keep a goroutine, a connection here and one at the origin for ever, and needs no ticket
// for it: net/http reads the rest of a body before it answers. So each step has its time instead: that until
// the next byte of a body comes, and that until the next piece of an answer is taken.

// slowBody is a request's body of which the next bytes must come within a time.
type slowBody struct {
	io.ReadCloser
	within time.Duration

	mu sync.Mutex
	rc *http.ResponseController // nil once the request is over: the connection is then another's
}

// watchBody bounds the body of a request, also where nobody reads it. Call over when the request is answered.
func watchBody(w http.ResponseWriter, r *http.Request, within time.Duration) (watched *http.Request, over func()) {
	if r.ContentLength == 0 || r.Body == nil {
		return r, func() {}
	}
	b := &slowBody{ReadCloser: r.Body, within: within, rc: http.NewResponseController(w)}
	b.deadline(time.Now().Add(within))
	watched = r.WithContext(r.Context()) // net/http looks at the body of the one it gave us
	watched.Body = b
	return watched, b.over
}

func (b *slowBody) deadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rc != nil {
		_ = b.rc.SetReadDeadline(t) // a recorder of tests has none
	}
}

func (b *slowBody) over() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rc = nil
}

func (b *slowBody) Read(p []byte) (int, error) {
	b.deadline(time.Now().Add(b.within))
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { // from now on net/http listens whether she has gone, and must not think so because she is silent
		b.deadline(time.Time{})
	}
	return n, err
}
