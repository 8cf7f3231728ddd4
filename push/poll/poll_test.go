package poll_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/push"
	"github.com/ushergo/usher/push/poll"
)

type room struct {
	mu    sync.Mutex
	st    push.Standing
	place int64
	n     uint64
	at    *push.Room
}

var mine = push.Ticket{Seq: 1, ID: push.ID{1}, Name: "mine"}

func (r *room) Look(context.Context, push.Ticket) (push.Standing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.st, nil
}

func (r *room) Rank(push.Spot) push.Rank {
	r.mu.Lock()
	defer r.mu.Unlock()
	return push.Rank{Place: r.place, Waiting: 5}
}
func (r *room) Stats() push.Stats   { return push.Stats{Waiting: 5, State: "open"} }
func (r *room) Heard(push.Ticket)   {}
func (r *room) Beat() time.Duration { return time.Second }

func (r *room) event(f func() []push.Change) {
	r.mu.Lock()
	r.n++
	n := r.n
	changes := f()
	r.mu.Unlock()
	for i := range changes {
		changes[i].N = n
	}
	r.at.Events(changes, push.Cursor{Epoch: 1, N: n}, false)
}

type answer struct {
	Cursor   string
	Reset    bool
	Next     int `json:"next_poll_ms"`
	Messages []map[string]any
}

func (a answer) has(kind string) bool {
	for _, m := range a.Messages {
		if m["type"] == kind {
			return true
		}
	}
	return false
}

// asker asks as one poll of the ticket does, holding for at most so long.
type asker func(after string, hold time.Duration) answer

// until asks on from a until an answer tells of kind, a few times at most.
func (ask asker) until(t *testing.T, kind string, a answer) answer {
	t.Helper()
	for range 20 {
		if a.has(kind) {
			return a
		}
		a = ask(a.Cursor, poll.Hold)
	}
	t.Fatalf("never told of %s, but of %+v", kind, a)
	return a
}

// bubble runs a test by a clock of its own.
func bubble(t *testing.T, f func(t *testing.T, hub *push.Hub, r *room, ask asker)) {
	synctest.Test(t, func(t *testing.T) {
		hub := push.New(push.Options{StatsEvery: 10 * time.Millisecond, RankEvery: 40 * time.Millisecond})
		defer hub.Close()
		r := &room{st: push.Standing{State: push.Waiting}, place: 9}
		r.at = hub.Room("premiere", func(*push.Room) (push.Source, push.Cursor) { return r, push.Cursor{Epoch: 1} })
		f(t, hub, r, func(after string, hold time.Duration) (a answer) {
			t.Helper()
			if _, err := hub.Accept(""); err != nil {
				t.Error(err)
				return a
			}
			c := poll.Caller{Room: r.at, Ticket: mine, From: r.at.Head()}
			if after != "" {
				cursor, err := push.ParseCursor(after)
				if err != nil {
					t.Error(err)
					return a
				}
				c.After = &cursor
			}
			c.Standing, _ = r.Look(t.Context(), mine)
			b, err := poll.Wait(t.Context(), hub, c, hold)
			if err != nil {
				t.Error(err)
			} else if err := json.Unmarshal(b, &a); err != nil {
				t.Errorf("%s: %v", b, err)
			}
			return a
		})
	})
}

func TestALostAnswerIsGivenAgain(t *testing.T) { // cases/push 12
	bubble(t, func(t *testing.T, _ *push.Hub, r *room, ask asker) {
		first := ask("", poll.Hold)
		if !first.has("rank") || !first.has("stats") || first.Reset || first.Cursor != "1.0" {
			t.Fatalf("%+v", first)
		}
		got := make(chan answer, 1)
		go func() { got <- ask(first.Cursor, poll.Hold) }()
		synctest.Wait() // it is held
		r.event(func() []push.Change {
			r.st = push.Standing{State: push.Admitted, Admission: []byte(`{"token":"x"}`)}
			return []push.Change{{ID: mine.ID, Type: push.ChangeAdmitted}}
		})
		ask.until(t, "admission", <-got)
		// The answer never arrived: the old cursor asks again.
		ask.until(t, "admission", ask(first.Cursor, poll.Hold))
		// It did arrive: the new one does not have it again.
		next := ask("1.1", poll.Hold)
		if next.has("admission") || next.Cursor != "1.1" {
			t.Errorf("%+v", next)
		}
	})
}

func TestNothingNewIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, _ *push.Hub, _ *room, ask asker) {
		a := ask("", poll.Hold)
		began := time.Now()
		if b := ask(a.Cursor, poll.Hold); len(b.Messages) > 0 || b.Cursor != a.Cursor {
			t.Errorf("%+v", b)
		}
		if held := time.Since(began); held != poll.Hold {
			t.Errorf("held for %v", held)
		}
	})
}

// A busy room does not make polls spin: places come at their pace.
func TestAPlaceIsToldWhenItIsDue(t *testing.T) {
	bubble(t, func(t *testing.T, _ *push.Hub, r *room, ask asker) {
		a := ask("", poll.Hold)
		r.event(func() []push.Change { r.place = 4; return nil })
		b := ask(a.Cursor, poll.Hold)
		if len(b.Messages) != 1 || b.Messages[0]["place"] != 4.0 || b.Cursor != "1.1" {
			t.Errorf("%+v", b)
		}
	})
}

func TestAnUnknownCursorStartsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, _ *push.Hub, _ *room, ask asker) {
		if a := ask("5.5", poll.Hold); !a.Reset || !a.has("rank") || a.Cursor != "1.0" {
			t.Errorf("%+v", a)
		}
	})
}

func TestDrainAnswersAtOnce(t *testing.T) { // cases/push 15
	bubble(t, func(t *testing.T, hub *push.Hub, _ *room, ask asker) {
		a := ask("", poll.Hold)
		got := make(chan answer, 1)
		go func() { got <- ask(a.Cursor, poll.Hold) }()
		synctest.Wait() // it is held
		began := time.Now()
		if err := hub.Drain(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		if b := <-got; b.Next < 1000 || !b.has("RECONNECT_SOON") {
			t.Errorf("%+v", b)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("answered after %v", took)
		}
	})
}
