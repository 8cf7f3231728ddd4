package transcribe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/examples/transcribe"
)

// TestMain lets this program be its own workers.
func TestMain(m *testing.M) {
	if os.Getenv("TRANSCRIBE_WORKER") == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := transcribe.WorkerMain(ctx, os.Args[2:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// shortDir is a folder whose name is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// tail keeps the end of what is written.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.buf.Len() > 1<<20 {
		w.buf.Next(1 << 19)
	}
	return w.buf.Write(p)
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.buf.Bytes()
	return string(b[max(0, len(b)-8000):])
}

func run(t *testing.T, o transcribe.FleetOptions, limit time.Duration, harms []transcribe.Harm) transcribe.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	dir := shortDir(t)
	socket, stop, err := transcribe.StartRedis(ctx, dir)
	switch {
	case errors.Is(err, exec.ErrNotFound) && os.Getenv("USHER_TEST_ALL") != "1":
		t.Skip("needs redis-server, which is not installed")
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(stop)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := &tail{}
	o.Command = func(args ...string) *exec.Cmd {
		cmd := exec.Command(self, args...)
		cmd.Env = append(os.Environ(), "TRANSCRIBE_WORKER=1")
		return cmd
	}
	o.Store, o.StoreNetwork, o.StoreAddr = "redis:{addr}", "unix", socket
	o.Sink, o.Log = "sqlite:"+filepath.Join(dir, "messages.db"), log
	f, err := transcribe.NewFleet(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	r, err := f.Chaos(ctx, harms)
	var out bytes.Buffer
	r.Print(&out)
	t.Logf("\n%s", &out)
	if err := errors.Join(err, r.Faults()); err != nil {
		t.Errorf("%v\nthe workers' last words:\n%s", err, log)
	}
	return r
}

// TestKillAFew does each harm, and a few kills.
func TestKillAFew(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some leases")
	}
	r := run(t, transcribe.FleetOptions{Workers: 3, Streams: 9, Lease: 2 * time.Second, Rate: 40, Drop: 5 * time.Second}, 4*time.Minute,
		transcribe.Harms(3, 1, 1, 2))
	if r.Stored == 0 || r.Fences <= 9 || len(r.Crash) != 5 || len(r.Term) != 2 {
		t.Errorf("nothing happened: %+v", r)
	}
}

// TestSoakKills is 100 kills with harms of the other kinds between them.
func TestSoakKills(t *testing.T) {
	if os.Getenv("USHER_SOAK") != "1" {
		t.Skip("takes a quarter of an hour; USHER_SOAK=1 runs it")
	}
	r := run(t, transcribe.FleetOptions{Workers: 3, Streams: 30, Lease: 2 * time.Second, Rate: 20, Drop: 10 * time.Second}, time.Hour,
		transcribe.Harms(100, 15, 15, 20))
	if r.Stored == 0 || len(r.Crash) != 130 {
		t.Errorf("nothing happened: %+v", r)
	}
}
