package sqltable_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/sqltable"
)

func events(from, to int) (list []relay.Event) {
	for n := from; n <= to; n++ {
		list = append(list, relay.Event{
			ID: relay.RoomID("premiere", 1, uint64(n)), Key: fmt.Sprint("key", n), Type: "admitted",
			At: time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.UTC), Payload: []byte(fmt.Sprintf(`{"n":%d,"text":"ä\u0000😀"}`, n)),
		})
	}
	return list
}

func batch(fence uint64, list []relay.Event) relay.Batch {
	return relay.Batch{Relay: "r", Partition: "premiere", Fence: fence, Events: list}
}

func none(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
}

func TestTableHasEachEventOnce(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		var sinks []*sqltable.Sink
		for range 2 { // two processes
			s, err := sqltable.Open(d.kind, d.dsn, "usher_events")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			sinks = append(sinks, s)
		}
		none(t, sinks[0].Send(t.Context(), batch(5, events(1, 100))))
		none(t, sinks[0].Send(t.Context(), batch(5, events(50, 150)))) // half of them again
		db := d.open(t)
		count := func() (n int) {
			t.Helper()
			if err := db.QueryRow("SELECT COUNT(*) FROM usher_events").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if n := count(); n != 150 {
			t.Fatalf("%d rows", n)
		}
		var payload, key, at string
		if err := db.QueryRow("SELECT payload, event_key, at FROM usher_events WHERE id = 'premiere/1.7'").Scan(&payload, &key, &at); err != nil {
			t.Fatal(err)
		}
		if payload != string(events(7, 7)[0].Payload) || key != "key7" || !strings.Contains(at, "2026-01-02") || !strings.Contains(at, "03:04:05.123456") {
			t.Fatal(payload, key, at)
		}

		// The next owner's fence shuts the former one out, with what is under way too.
		none(t, sinks[1].Send(t.Context(), batch(9, events(151, 160))))
		for _, err := range sinks[0].Send(t.Context(), batch(5, events(161, 170))) {
			if relay.ClassOf(err) != relay.Fenced {
				t.Fatalf("a smaller fence: %v", err)
			}
		}
		none(t, sinks[0].Send(t.Context(), relay.Batch{Relay: "r", Partition: "other", Fence: 1, Events: events(171, 172)}))
		late := events(173, 173)
		late[0].Late = true
		none(t, sinks[0].Send(t.Context(), batch(0, late))) // from the dead letters
		if n := count(); n != 163 {
			t.Fatalf("%d rows", n)
		}

		// One that no column takes is refused alone.
		mixed := events(181, 184)
		mixed[1].Payload = []byte{0xff, 0}
		mixed[2].ID = strings.Repeat("x", 300)
		for i, err := range sinks[1].Send(t.Context(), batch(9, mixed)) {
			if (i == 1 || i == 2) != (relay.ClassOf(err) == relay.Rejected) || (i == 0 || i == 3) != (err == nil) {
				t.Fatalf("event %d: %v", i, err)
			}
		}
		// What the database itself refuses, too.
		if d.kind != sqltable.SQLite {
			if _, err := db.Exec("ALTER TABLE usher_events ADD CONSTRAINT no_bad CHECK (event_key <> 'bad')"); err != nil {
				t.Fatal(err)
			}
			mixed = events(191, 193)
			mixed[1].Key = "bad"
			for i, err := range sinks[1].Send(t.Context(), batch(9, mixed)) {
				if (i == 1) != (relay.ClassOf(err) == relay.Rejected) || (i != 1) != (err == nil) {
					t.Fatalf("event %d: %v", i, err)
				}
			}
		}
		// Four Sends at once, as a relay makes them.
		var wg sync.WaitGroup
		before := count()
		for w := range 4 {
			wg.Go(func() {
				for n := range 20 {
					list := events(1000+w*1000+n*10, 1000+w*1000+n*10+9)
					for try := 0; ; try++ {
						errs := sinks[w%2].Send(t.Context(), batch(9, list))
						if errs == nil || errs[0] == nil {
							break
						}
						if relay.ClassOf(errs[0]) != relay.Transient || try > 20 {
							t.Error(errs[0])
							return
						}
					}
				}
			})
		}
		wg.Wait()
		if n := count(); n != before+800 {
			t.Fatalf("%d rows, want %d", n, before+800)
		}
	})
}

func TestWrongSettingsAreNobodysFault(t *testing.T) {
	if _, err := sqltable.Open(sqltable.Postgres, "postgres://x/y", "a; drop table b"); err == nil {
		t.Fatal("a table of that name")
	}
	s, err := sqltable.Open(sqltable.SQLite, t.TempDir(), "t") // a folder
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Send(t.Context(), batch(1, events(1, 1)))[0]; relay.ClassOf(err) != relay.Denied {
		t.Fatal(err)
	}
}
