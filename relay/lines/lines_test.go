package lines_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/lines"
)

func event(n uint64) relay.Event {
	return relay.Event{ID: relay.RoomID("a", 1, n), Key: "k", Type: "admitted", At: time.Unix(int64(n), 0), Payload: []byte(`{"html":"<b>"}`), Position: "1.1"}
}

func send(t *testing.T, s relay.Sink, events ...relay.Event) {
	t.Helper()
	for _, err := range s.Send(t.Context(), relay.Batch{Events: events}) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func ids(t *testing.T, path string) (list []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		e, err := relay.ReadEnvelope([]byte(line))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, e.ID)
	}
	return list
}

func open(t *testing.T, path string) *lines.Sink {
	t.Helper()
	s, err := lines.Open(path, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestALineThatACrashCutIsWrittenAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	s := open(t, path)
	send(t, s, event(1), event(2))
	whole, _ := os.ReadFile(path)
	for cut := 1; cut < len(whole)/2; cut += 7 {
		if err := os.WriteFile(path, whole[:len(whole)-cut], 0o600); err != nil {
			t.Fatal(err)
		}
		send(t, open(t, path), event(2))
		if got := strings.Join(ids(t, path), " "); got != "a/1.1 a/1.2" {
			t.Fatalf("cut by %d: %s", cut, got)
		}
	}
	// What is not ours stays.
	if err := os.WriteFile(path, []byte("# somebody's own"), 0o600); err != nil {
		t.Fatal(err)
	}
	send(t, open(t, path), event(1))
	if b, _ := os.ReadFile(path); !bytes.HasPrefix(b, []byte("# somebody's own\n{\"id\":")) {
		t.Fatalf("%s", b)
	}
}

func TestAFileThatWasMovedAwayIsMadeAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	s := open(t, path)
	send(t, s, event(1))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	send(t, s, event(2))
	if a, b := ids(t, path+".1"), ids(t, path); len(a) != 1 || len(b) != 1 || b[0] != "a/1.2" {
		t.Fatal(a, b)
	}
}

// broken takes nothing.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestAWriterThatFailsTakesNothing(t *testing.T) {
	errs := lines.To(broken{}).Send(t.Context(), relay.Batch{Events: []relay.Event{event(1), event(2)}})
	if len(errs) != 2 || errs[0] == nil || errs[1] == nil {
		t.Fatal(errs)
	}
	if _, err := lines.Open(t.TempDir(), true); err == nil {
		t.Fatal("a folder is opened")
	}
}
