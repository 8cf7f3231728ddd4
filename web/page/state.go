package page

import (
	"strings"
	"time"
)

// What a visitor can be in. Each has its own heading, words and parts of the page.
const (
	Waiting     = "waiting"     // in line
	Prequeue    = "prequeue"    // here before a scheduled opening; places are drawn at OpensAt
	NotOpen     = "not_open"    // too early even for the prequeue; no ticket
	Paused      = "paused"      // in line, and nobody is admitted for now
	Closed      = "closed"      // refused; no ticket
	Full        = "full"        // refused, tried again by the page; no ticket
	TooMany     = "too_many"    // refused for too many tries; no ticket
	Admitted    = "admitted"    // her turn: the page goes to Next
	Ended       = "ended"       // the ticket ended; View.Reason says why
	Unavailable = "unavailable" // usher's engine does not answer; the page tries again
	Origin      = "origin"      // admitted, but the origin is down or slow (502, 504); the session is kept
	Gone        = "gone"        // no such room
	Stuck       = "stuck"       // sent back and forth: the browser keeps no cookies
)

// States lists every state in the order in which the preview shows them.
func States() []string {
	return []string{Waiting, Prequeue, NotOpen, Paused, Admitted, Ended, Closed, Full, TooMany, Unavailable, Origin, Gone, Stuck}
}

// Reasons for View.Reason when View.State is Ended. An unknown reason gets the general words.
const (
	ReasonClaim     = "claim"
	ReasonIdle      = "idle"
	ReasonMax       = "max"
	ReasonAbandoned = "abandoned"
	ReasonLeft      = "left"
)

// View is what is known about one visitor at one moment. Pointers are nil where a thing is not known.
type View struct {
	State    string // one of the constants above; an unknown one is shown as Unavailable
	Reason   string // for Ended: claim, idle, max, abandoned, left
	TicketID string // public id, shown in small print; empty without a ticket
	Place    *int64 // from 1; nil before an opening, in random order, or when not known yet
	Waiting  *int64 // living waiters in the room
	Behind   *int64 // nil: reckoned from Waiting and Place

	// The expected wait in seconds. Shown only when both are set.
	ETALow, ETAHigh *int

	OpensAt  *time.Time // scheduled opening
	EntersAt *time.Time // when the prequeue opens (OpensAt − prequeue); nil: OpensAt
	Draw     string     // hash of the draw's seed, published before the opening; empty: not shown
	Message  string     // the operator's words to those who wait; plain text
	At       time.Time  // the engine's time of this view, from which the page sets its clock; zero: now
}

// State is everything that one rendering needs.
type State struct {
	Room string // room id
	Name string // the room's name for people; empty: the folder's room_name, or the id made readable
	Lang string // the request's Accept-Language header, as it came
	View View

	APIBase string // "/.usher/v1" or "/v1"; empty: "/v1"
	// Next is where the page goes once admitted: a path on this site, already validated. What does not look like
	// one is replaced by "/". In state Origin an empty Next means "do not retry by yourself" (it was a POST).
	Next string
	// Again is where a visitor without scripts goes to enter anew after her ticket ended; empty: this same address.
	Again string

	Refresh    int           // seconds between plain refreshes without scripts; 0: a default by state; < 0: none
	RetryAfter int           // seconds; what the response's Retry-After says; 0: the page's own default
	Grace      time.Duration // the room's queue.grace, for words; 0: "a few minutes"
	Claim      time.Duration // the room's session.claim; 0: 60 s is assumed
	Order      string        // the room's queue.order; "random" explains why there is no place

	Theme string // "light" or "dark" forces a colour scheme (preview); empty: the visitor's
	Nonce string // set by Write; for Render: the nonce of your Content-Security-Policy

	preview bool
	first   int64 // preview: the place at which the ticket began
}

func (s *State) refresh() int {
	if s.Refresh != 0 {
		return max(s.Refresh, 0)
	}
	switch s.View.State {
	case Waiting, Prequeue, Paused:
		return 15
	case NotOpen, Full, Unavailable, TooMany:
		return 30
	case Origin:
		if s.Next != "" {
			return 15
		}
	}
	return 0
}

func (s *State) defaults() {
	if !known(s.View.State) {
		s.View.State = Unavailable
	}
	if s.APIBase == "" {
		s.APIBase = "/v1"
	}
	s.Next = safeNext(s.Next, s.View.State)
	if s.Again != "" {
		s.Again = safeNext(s.Again, "")
	}
	if s.View.At.IsZero() {
		s.View.At = time.Now()
	}
	if s.View.Behind == nil && s.View.Waiting != nil && s.View.Place != nil {
		b := max(*s.View.Waiting-*s.View.Place, 0)
		s.View.Behind = &b
	}
	if s.Theme != "light" && s.Theme != "dark" {
		s.Theme = ""
	}
}

func known(state string) bool {
	for _, k := range States() {
		if k == state {
			return true
		}
	}
	return false
}

// safeNext is the second lock on the door: the caller has validated next already, and a mistake there must still not
// become an open redirect.
func safeNext(next, state string) string {
	if next == "" && state == Origin {
		return ""
	}
	bad := func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' }
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsFunc(next, bad) {
		return "/"
	}
	return next
}

// readable makes a name for people from a room id: "summer-sale" becomes "Summer Sale".
func readable(id string) string {
	words := strings.FieldsFunc(id, func(r rune) bool { return r == '-' || r == '_' })
	for i, w := range words {
		words[i] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, " ")
}
