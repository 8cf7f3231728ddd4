package loadtest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
	"github.com/ushergo/usher/web"
)

// A visitor on a WebSocket is told her place and her admission by a real usher.
func TestFollowingByWebSocket(t *testing.T) {
	engine, err := memory.Open(t.TempDir(), memory.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	rooms, err := room.Open(t.Context(), engine, room.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rooms.Close()
	c := room.DefaultConfig("r")
	c.Capacity.Active = 1
	if _, err := rooms.Configure(t.Context(), c, 0); err != nil {
		t.Fatal(err)
	}
	keys, err := token.Open(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := web.New(web.Options{Rooms: rooms, Keys: keys, StatsEvery: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	public := httptest.NewServer(server.Public())
	defer public.Close()
	defer server.Close()
	enter := func() (ticket string) {
		t.Helper()
		resp, err := http.Post(public.URL+"/v1/rooms/r/enter", "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var doc struct{ Ticket string }
		if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
			t.Fatal(err)
		}
		return doc.Ticket
	}
	inside, outside := enter(), enter()
	leave := func(ticket string) {
		req, _ := http.NewRequest("POST", public.URL+"/v1/rooms/r/leave", nil)
		req.Header.Set("Usher-Ticket", ticket)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
	}
	u, _ := url.Parse(public.URL)
	s := &websocket{newTarget(u, "", false, 10*time.Second), "r"}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	admitted := false
	err = s.Follow(ctx, outside, "", func(u Update) bool {
		switch u.Type {
		case "rank":
			if u.Place == nil || *u.Place != 1 {
				t.Errorf("place %v", u.Place)
			}
			go leave(inside)
		case "admission":
			admitted = u.Admission != nil
		}
		return !admitted
	})
	if err != nil || !admitted {
		t.Errorf("admitted %v, %v", admitted, err)
	}
	if err := s.Follow(ctx, "nonsense", "", func(Update) bool { return true }); err == nil || ctx.Err() != nil {
		t.Errorf("without a ticket: %v", err)
	}
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := s.Follow(short, outside, "", func(Update) bool { return true }); err == nil || short.Err() == nil {
		t.Errorf("an interrupted one: %v", err)
	}
}
