package demo

import (
	"fmt"
	"sync"
	"time"
)

// A ticket that the crowd has not claimed as its own for so long is a guest's:
// that of the person who opened the address.
const guestAfter = 4 * time.Second

// guests finds the people among the crowd, by the tickets of the room's log that
// no simulated visitor knows. It is safe for concurrent use.
type guests struct {
	mu    sync.Mutex
	known map[string]*guest // living tickets, by id
}

type guest struct {
	seq   int64
	since time.Time // of its entry, as far as this process saw it
	spoke time.Time // when it was first found to be of the crowd and not in the log
	ours  bool      // of the crowd
	told  bool
	state string // waiting, admitted, inside
}

func newGuests() *guests { return &guests{known: map[string]*guest{}} }

// ours marks a ticket as the crowd's. It may come before the log tells of it.
func (g *guests) ours(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at(id).ours = true
}

func (g *guests) at(id string) *guest {
	k := g.known[id]
	if k == nil {
		k = &guest{}
		g.known[id] = k
	}
	return k
}

// event takes one event of the log and returns a line for people, if it is about
// a guest and worth one.
func (g *guests) event(kind, id, reason string, seq int64, now time.Time) string {
	if id == "" {
		return ""
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch kind {
	case "entered":
		k := g.at(id)
		k.seq, k.since, k.state = seq, now, "waiting"
		return ""
	case "admitted", "claimed":
		k := g.known[id]
		if k == nil {
			return ""
		}
		k.state = map[string]string{"admitted": "admitted", "claimed": "inside"}[kind]
		if !k.told || k.ours {
			return ""
		}
		if kind == "admitted" {
			return fmt.Sprintf("#%-5d a guest's turn has come", k.seq)
		}
		return fmt.Sprintf("#%-5d a guest is inside", k.seq)
	case "left", "expired", "abandoned":
		k := g.known[id]
		delete(g.known, id)
		if k != nil && k.told && !k.ours {
			return fmt.Sprintf("#%-5d a guest is gone (%s)", k.seq, reason)
		}
	}
	return ""
}

// arrivals returns a line for each guest that has become certain since the last
// call, and all who are here as one text, empty if nobody is.
func (g *guests) arrivals(now time.Time) (lines []string, here string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for id, k := range g.known {
		if k.ours || k.since.IsZero() || now.Sub(k.since) < guestAfter {
			// A ticket of ours that never shows in the log (its end was read before its
			// visitor spoke) must not stay for ever.
			if k.ours && k.since.IsZero() {
				if k.spoke.IsZero() {
					k.spoke = now
				} else if now.Sub(k.spoke) > time.Minute {
					delete(g.known, id)
				}
			}
			continue
		}
		if !k.told {
			k.told = true
			lines = append(lines, fmt.Sprintf("#%-5d a guest joined: is it you?", k.seq))
		}
		if n++; n <= 3 {
			if here != "" {
				here += ", "
			}
			here += fmt.Sprintf("#%d %s", k.seq, k.state)
		}
	}
	if n > 3 {
		here += fmt.Sprintf(" and %d more", n-3)
	}
	return lines, here
}
