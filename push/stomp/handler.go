package stomp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push"
)

// Connect is what a client's CONNECT says of itself.
type Connect struct {
	Ticket string // the secret, if given
	Room   string // which room's ticket is meant, if given
}

// Caller is whom a CONNECT turned out to belong to.
type Caller struct {
	Room     *push.Room
	Ticket   push.Ticket
	Standing push.Standing
	From     push.Cursor // the room's Head before the ticket was looked at
}

// Refusal is a CONNECT that is answered with ERROR.
type Refusal struct {
	Code    push.Code
	Message string        // for the client; holds no secret
	After   time.Duration // when to come back; 0: not said
}

func (r *Refusal) Error() string { return r.Message }

// Handler serves WebSockets. All fields but Within are required.
type Handler struct {
	Hub *push.Hub
	// Caller says whom a CONNECT belongs to; r is the upgrade. Errors: *Refusal; others are unknown, come back.
	Caller func(ctx context.Context, r *http.Request, c Connect) (Caller, error)
	// Within is how long a client may take to CONNECT. Default 10s.
	Within time.Duration
}

// maxUpgrade is how long the answer to an upgrade may take to write.
const maxUpgrade = 5 * time.Second

// Serve upgrades a request and reads its CONNECT; what is then left is one small goroutine. addr is the visitor's
// address as the hub counts it. Before anything is read, the hub's door decides: where it says no, the socket is upgraded
// and closed with CodeLater, because a browser's script sees neither a status nor Retry-After.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, addr string) {
	after, refused := h.Hub.Accept(addr)
	up := ws.HTTPUpgrader{Timeout: maxUpgrade, Protocol: func(p string) bool {
		return p == "v12.stomp" || p == "v11.stomp" || p == "v10.stomp"
	}}
	nc, rw, _, err := up.Upgrade(r, w)
	if err != nil {
		if refused == nil {
			h.Hub.Forget(addr)
		}
		if nc != nil { // refused after it was taken from the server
			_ = nc.Close()
		}
		return
	}
	if refused != nil {
		code := push.CodeLater
		if errors.Is(refused, push.ErrDraining) {
			code = push.CodeRestart
		}
		farewell(nc, codec{}.AppendClose(nil, code, code.String(), after))
		return
	}
	s := &session{r: reader{nc: nc}}
	if n := rw.Reader.Buffered(); n > 0 {
		s.r.early = make([]byte, n)
		_, _ = rw.Reader.Read(s.r.early)
	}
	within := h.Within
	if within <= 0 {
		within = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(r.Context(), within)
	defer cancel()
	_ = nc.SetDeadline(time.Now().Add(within))
	rest, err := h.connect(ctx, s, r, addr)
	if err != nil {
		h.Hub.Forget(addr)
		h.turnAway(nc, s, err)
		return
	}
	_ = nc.SetDeadline(time.Time{})
	// The stack of this goroutine has grown; the one that stays begins small.
	if rest {
		_ = s.frames(nil)
	}
	go s.read()
}

// connect reads the CONNECT and attaches the connection; rest says that more than it has been read.
func (h *Handler) connect(ctx context.Context, s *session, r *http.Request, addr string) (rest bool, err error) {
	f, err := s.first()
	if err != nil {
		return false, err
	}
	if f.Command != "CONNECT" && f.Command != "STOMP" {
		return false, &Refusal{Code: push.CodePolicy, Message: "CONNECT first"}
	}
	accept, ok := f.Get("accept-version")
	version, ok := negotiate(accept, ok)
	if !ok {
		return false, &Refusal{Code: push.CodeProtocol, Message: "supported versions are 1.0, 1.1 and 1.2"}
	}
	beat, err := wantsBeats(f)
	if err != nil {
		return false, err
	}
	var cursor *push.Cursor
	if text := f.Value("after"); text != "" {
		c, err := push.ParseCursor(text)
		if err != nil {
			return false, &Refusal{Code: push.CodeProtocol, Message: "after is not a cursor; send that of the last MESSAGE seen"}
		}
		cursor = &c
	}
	caller, err := h.Caller(ctx, r, Connect{Ticket: f.Value("ticket"), Room: f.Value("room")})
	if err != nil {
		return false, err
	}
	s.dec.Version = version
	hello := text(nil, &Frame{Command: "CONNECTED", Headers: []Header{
		{"version", version.String()}, {"heart-beat", "20000,0"}, {"server", "usher"},
		{"room", caller.Room.ID()}, {"ticket-id", caller.Ticket.Name},
		{"reconnect-window", strconv.FormatInt(h.Hub.Window().Milliseconds(), 10)},
	}}, version)
	s.c, err = h.Hub.Attach(caller.Room, caller.Ticket, caller.Standing, caller.From, push.Peer{
		Conn: s.r.nc, Codec: codec{beat}, Addr: addr, After: cursor, Pings: true, Hello: hello,
	})
	switch {
	case errors.Is(err, push.ErrTicket):
		return false, &Refusal{Code: push.CodeLater, Message: "this ticket has too many connections open already", After: 30 * time.Second}
	case errors.Is(err, push.ErrDraining):
		return false, &Refusal{Code: push.CodeRestart, Message: "this node is being stopped", After: time.Second}
	case err != nil:
		return false, err
	}
	return s.dec.Pending() > 0, nil
}

// first reads up to the first whole frame.
func (s *session) first() (*Frame, error) {
	s.dec.Version = V12 // ends of line may be CR LF; CONNECT is not escaped in any version
	for {
		var h head
		if err := s.r.head(&h); err != nil {
			return nil, err
		}
		if h.op >= ws.OpClose {
			if err := s.ctrl.take(200, 20); err != nil {
				return nil, err
			}
			if _, err := s.r.payload(&h, nil); err != nil {
				return nil, err
			}
			if h.op == ws.OpClose {
				return nil, errLeft
			}
			continue
		}
		done, err := s.msgs.next(&s.r, &h)
		if err != nil {
			return nil, err
		}
		if !done {
			continue
		}
		s.dec.Feed(s.msgs.part)
		s.msgs.part = nil
		f, ok, err := s.dec.Next()
		if err != nil {
			code := push.CodeProtocol
			if errors.Is(err, ErrTooBig) {
				code = push.CodeTooBig
			}
			return nil, &Refusal{Code: code, Message: strings.TrimPrefix(err.Error(), "stomp: ")}
		}
		if ok {
			return &f, nil
		}
		if err := s.text.take(100, 5); err != nil {
			return nil, err
		}
	}
}

// negotiate chooses the highest version that both speak. No accept-version means 1.0.
func negotiate(accept string, given bool) (Version, bool) {
	if !given {
		return V10, true
	}
	best, ok := V10, false
	for _, text := range strings.Split(accept, ",") {
		for _, v := range []Version{V10, V11, V12} {
			if strings.TrimSpace(text) == v.String() && (!ok || v > best) {
				best, ok = v, true
			}
		}
	}
	return best, ok
}

// wantsBeats says whether the client wants to hear from us.
func wantsBeats(f *Frame) (bool, error) {
	text, ok := f.Get("heart-beat")
	if !ok {
		return false, nil
	}
	x, y, ok := strings.Cut(text, ",")
	_, err1 := strconv.ParseUint(strings.TrimSpace(x), 10, 32)
	want, err2 := strconv.ParseUint(strings.TrimSpace(y), 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return false, &Refusal{Code: push.CodeProtocol, Message: "heart-beat must be two numbers of milliseconds"}
	}
	return want > 0, nil
}

// turnAway tells a client without a session why, and closes.
func (h *Handler) turnAway(nc net.Conn, s *session, err error) {
	var b []byte
	var refusal *Refusal
	if errors.As(err, &refusal) {
		b = text(b, errorFrame(refusal.Message, ""), V12)
		b = codec{}.AppendClose(b, refusal.Code, refusal.Code.String(), refusal.After)
	} else if e, ok := asClose(err); ok {
		b = codec{}.AppendClose(b, e.code, e.text, 0)
	} else if timeout := (net.Error)(nil); errors.As(err, &timeout) && timeout.Timeout() {
		b = text(b, errorFrame("no CONNECT within the time", ""), V12)
		b = codec{}.AppendClose(b, push.CodePolicy, "no CONNECT", 0)
	} else if !errors.Is(err, net.ErrClosed) {
		b = codec{}.AppendClose(b, push.CodeLater, push.CodeLater.String(), 5*time.Second)
	}
	farewell(nc, b)
}

// farewell writes last words, gives the peer a second to take them, and closes.
func farewell(nc net.Conn, b []byte) {
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(time.Second))
	if len(b) == 0 {
		return
	}
	if _, err := nc.Write(b); err != nil {
		return
	}
	if c, ok := nc.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	var sink [256]byte
	for {
		if _, err := nc.Read(sink[:]); err != nil {
			return
		}
	}
}
