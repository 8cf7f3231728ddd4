package redisstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/redisstream"
)

func open(t *testing.T, s *redistest.Server) *redisstream.Source {
	t.Helper()
	src := redisstream.New(rueidis.ClientOption{InitAddress: []string{s.Addr}}, "bookings", redisstream.Options{Key: "ticket"})
	t.Cleanup(func() { _ = src.Close() })
	return src
}

// read reads n events.
func read(t *testing.T, r relay.Reader, n int) (events []relay.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	for len(events) < n {
		got, err := r.Read(ctx, 7)
		if err != nil {
			t.Fatalf("after %d: %v", len(events), err)
		}
		events = append(events, got...)
	}
	return events
}

func TestStream(t *testing.T) {
	server := redistest.Start(t)
	src := open(t, server)
	part, err := src.Partitions(t.Context())
	if err != nil || len(part) != 1 || part[0].Name != "bookings" {
		t.Fatal(part, err)
	}
	r, err := src.Open(t.Context(), "bookings", relay.Start{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(n int) {
		server.Must("XADD", "bookings", fmt.Sprintf("%d-5", 1000+n), "ticket", fmt.Sprint("t", n%3), "type", "booked", "seat", "Ä\xff"[:2+n%2])
	}
	for n := range 20 {
		add(n)
	}
	got := read(t, r, 20)
	for n, e := range got {
		var fields map[string]any
		if err := json.Unmarshal(e.Payload, &fields); err != nil {
			t.Fatal(err)
		}
		if e.ID != fmt.Sprintf("bookings/%d-5", 1000+n) || e.Key != fmt.Sprint("t", n%3) || e.Type != "booked" || !e.At.Equal(time.UnixMilli(int64(1000+n))) || fields["ticket"] != e.Key {
			t.Fatalf("%+v %s", e, e.Payload)
		}
	}
	add(20) // while it waits, or before
	if e := read(t, r, 1)[0]; e.ID != "bookings/1020-5" {
		t.Fatal(e.ID)
	}
	for _, tc := range []struct {
		from  relay.Start
		first string
	}{
		{relay.Start{After: got[9].Position}, "bookings/1010-5"},
		{relay.Start{After: "1009-5"}, "bookings/1010-5"},
		{relay.Start{At: time.UnixMilli(1007)}, "bookings/1007-5"},
		{relay.Start{}, "bookings/1000-5"},
	} {
		r, err := src.Open(t.Context(), "bookings", tc.from)
		if err != nil {
			t.Fatal(err)
		}
		if e := read(t, r, 1)[0]; e.ID != tc.first {
			t.Errorf("%+v begins with %s", tc.from, e.ID)
		}
	}
	if n, err := src.Behind(t.Context(), "bookings", got[9].Position); err != nil || n != 11 {
		t.Errorf("behind %d, %v", n, err)
	}
}

func TestTrimmedStream(t *testing.T) {
	server := redistest.Start(t)
	src := open(t, server)
	for n := range 30 {
		server.Must("XADD", "bookings", fmt.Sprintf("%d-0", 1+n), "ticket", "t")
	}
	r, err := src.Open(t.Context(), "bookings", relay.Start{})
	if err != nil {
		t.Fatal(err)
	}
	read(t, r, 7)
	server.Must("XTRIM", "bookings", "MAXLEN", "20") // 1 to 10 are gone
	_, err = r.Read(t.Context(), 7)
	var gap *relay.GapError
	if !errors.As(err, &gap) || gap.Lost != 3 {
		if server.Info("redis_version") < "7" {
			t.Skip("Redis before 7 does not count what it had")
		}
		t.Fatalf("%+v, %v", gap, err)
	}
	if e := read(t, r, 1)[0]; e.ID != "bookings/11-0" {
		t.Fatal(e.ID)
	}
	// Whoever had read what was trimmed misses nothing.
	r, err = src.Open(t.Context(), "bookings", relay.Start{After: gap.To})
	if err != nil {
		t.Fatal(err)
	}
	last := read(t, r, 20)[19]
	server.Must("XTRIM", "bookings", "MAXLEN", "0")
	server.Must("XADD", "bookings", "100-0", "ticket", "t")
	if e := read(t, r, 1)[0]; e.ID != "bookings/100-0" || last.ID != "bookings/30-0" {
		t.Fatal(e.ID, last.ID)
	}
}
