package web

import (
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
)

// admission is the token of an admitted visitor, as answers show it.
type admission struct {
	Token        string `json:"token"`
	ExpiresAt    string `json:"expires_at"`
	RenewAfterMS int64  `json:"renew_after_ms"`
}

// admissions signs tokens when they are first asked for, and keeps them: signing costs as much as a whole
// answer, and an admitted visitor's page may ask each second.
type admissions struct {
	keys   *token.Keys
	issuer string
	shards [64]admissionShard
}

type admissionShard struct {
	mu    sync.Mutex
	known map[room.ID]signed
}

type signed struct {
	expires int64 // unix seconds
	token   string
}

// maxSigned bounds a shard: 32,768 tokens of about 500 bytes in all.
const maxSigned = 512

func newAdmissions(keys *token.Keys, issuer string) *admissions {
	a := &admissions{keys: keys, issuer: issuer}
	for i := range a.shards {
		a.shards[i].known = map[room.ID]signed{}
	}
	return a
}

// of returns the admission of an admitted ticket. fresh makes a new one whatever is known.
func (a *admissions) of(e *entry, v *room.Visit, fresh bool) (*admission, error) {
	at := time.UnixMicro(v.At)
	expires := at.Add(min(v.TokenEnd, token.MaxAge)).Truncate(time.Second)
	if expires.Before(at) {
		expires = at
	}
	doc := &admission{
		ExpiresAt:    expires.UTC().Format(time.RFC3339),
		RenewAfterMS: renewAfter(time.Duration(e.cfg.Session.Idle), v.TokenEnd).Milliseconds(),
	}
	var err error
	if doc.Token, err = a.token(e, v.ID, at, expires, fresh); err != nil {
		return nil, err
	}
	return doc, nil
}

// until returns the token of a session in which a token signed now lives until end.
func (a *admissions) until(e *entry, id room.ID, end time.Time) (text string, expires time.Time, err error) {
	now := time.Now()
	expires = end.Truncate(time.Second)
	if latest := now.Add(token.MaxAge); expires.After(latest) {
		expires = latest.Truncate(time.Second)
	}
	if expires.Before(now) {
		expires = now
	}
	text, err = a.token(e, id, now, expires, false)
	return text, expires, err
}

// token returns the token that is known for a ticket and an end, or signs one. The lock is held while signing,
// so that parallel requests get one and the same.
func (a *admissions) token(e *entry, id room.ID, at, expires time.Time, fresh bool) (string, error) {
	sh := &a.shards[id[0]&63]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if k, ok := sh.known[id]; ok && !fresh && k.expires == expires.Unix() {
		return k.token, nil
	}
	text, err := a.keys.Sign(token.Admission{Issuer: a.issuer, Room: e.room.ID(), TicketID: id.String(), IssuedAt: at, Expires: expires})
	if err != nil {
		return "", err
	}
	if len(sh.known) >= maxSigned {
		for other := range sh.known {
			delete(sh.known, other)
			break
		}
	}
	sh.known[id] = signed{expires.Unix(), text}
	return text, nil
}

// renewAfter is a fifth of the idle time, and well before the end.
func renewAfter(idle, left time.Duration) time.Duration {
	return max(min(idle/5, left/2), 500*time.Millisecond)
}

// visitDoc is a visit as answers show it. appendTo writes what encoding/json would.
type visitDoc struct {
	Room            string     `json:"room"`
	TicketID        string     `json:"ticket_id"`
	Ticket          string     `json:"ticket,omitempty"` // the secret: in enter's answer alone
	State           string     `json:"state"`
	Seq             uint64     `json:"seq"`
	Pos             *uint64    `json:"pos"`
	Place           *int64     `json:"place"`
	Waiting         int64      `json:"waiting"`
	ETA             *room.ETA  `json:"eta"`
	PollAfterMS     int64      `json:"poll_after_ms"`
	PresenceAfterMS int64      `json:"presence_after_ms"`
	RoomState       string     `json:"room_state"`
	Message         string     `json:"message"`
	At              string     `json:"at"`
	Admission       *admission `json:"admission"`
}

// appendVisit writes a visit as JSON. It is visitDoc by hand: reflection would be a tenth of an answer's cost.
func appendVisit(b []byte, id string, v *room.Visit, secret string, adm *admission) []byte {
	b = append(b, `{"room":"`...)
	b = append(b, id...) // room ids need no escaping
	b = append(b, `","ticket_id":"`...)
	b = append(b, token.FormatID(v.ID)...)
	if secret != "" {
		b = append(b, `","ticket":"`...)
		b = append(b, secret...)
	}
	b = append(b, `","state":"`...)
	b = append(b, v.State.String()...)
	b = append(b, `","seq":`...)
	b = strconv.AppendUint(b, v.Seq, 10)
	b = append(b, `,"pos":`...)
	if v.Pos != 0 {
		b = strconv.AppendUint(b, v.Pos, 10)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"place":`...)
	if v.Place != 0 || v.State == room.Active {
		b = strconv.AppendInt(b, v.Place, 10)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"waiting":`...)
	b = strconv.AppendInt(b, v.Waiting, 10)
	b = append(b, `,"eta":`...)
	b = appendETA(b, v.ETA)
	b = append(b, `,"poll_after_ms":`...)
	b = strconv.AppendInt(b, v.PollAfter.Milliseconds(), 10)
	b = append(b, `,"presence_after_ms":`...)
	b = strconv.AppendInt(b, v.PresenceAfter.Milliseconds(), 10)
	b = append(b, `,"room_state":`...)
	b = appendString(b, v.RoomState)
	b = append(b, `,"message":`...)
	b = appendString(b, v.Message)
	b = append(b, `,"at":"`...)
	b = appendAt(b, v.At)
	b = append(b, `","admission":`...)
	b = appendAdmission(b, adm)
	return append(b, '}')
}

func appendETA(b []byte, eta *room.ETA) []byte {
	if eta == nil {
		return append(b, "null"...)
	}
	b = append(b, `{"low_s":`...)
	b = strconv.AppendInt(b, eta.LowS, 10)
	b = append(b, `,"high_s":`...)
	b = strconv.AppendInt(b, eta.HighS, 10)
	b = append(b, `,"basis":`...)
	b = appendString(b, eta.Basis)
	return append(b, '}')
}

func appendAdmission(b []byte, a *admission) []byte {
	if a == nil {
		return append(b, "null"...)
	}
	b = append(b, `{"token":"`...)
	b = append(b, a.Token...)
	b = append(b, `","expires_at":"`...)
	b = append(b, a.ExpiresAt...)
	b = append(b, `","renew_after_ms":`...)
	b = strconv.AppendInt(b, a.RenewAfterMS, 10)
	return append(b, '}')
}

// appendAt writes a decision time (µs since 1970) as room.FormatAt does.
func appendAt(b []byte, us int64) []byte {
	return time.UnixMicro(us).UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
}

// appendString writes a JSON string as encoding/json does.
func appendString(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			q, err := json.Marshal(s)
			if err != nil { // a string: cannot happen
				panic(err)
			}
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
