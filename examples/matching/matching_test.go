package matching

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/gate"
)

func openGate(t *testing.T, o gate.Options) *gate.Gate {
	t.Helper()
	s, err := memory.OpenGates("", memory.GateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gate.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(); _ = s.Close() })
	return g
}

func openSQLite(t *testing.T) *DB {
	t.Helper()
	db, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "jobs.db"), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestTables runs every case with 500 callers on every database; each fails unless it has exactly its winners and no
// write is lost. The figures are printed, not judged.
func TestTables(t *testing.T) {
	callers, each := 500, 2
	if testing.Short() {
		callers, each = 100, 1
	}
	if os.Getenv("USHER_SOAK") == "1" {
		each = 10
	}
	eachDB(t, func(t *testing.T, db *DB) {
		var out strings.Builder
		err := Tables(t.Context(), &out, db, callers, each, func(n int) (*gate.Gate, error) { return openGate(t, gate.Options{Permits: n}), nil })
		t.Logf("\n%s", out.String())
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestReasons: who does not get the job learns why, with the gate and without, and a winner who asks again has it still.
func TestReasons(t *testing.T) {
	eachDB(t, func(t *testing.T, db *DB) {
		for name, o := range map[string]Options{"gate": {Gate: openGate(t, gate.Options{Permits: 3})}, "no gate": {}} {
			t.Run(name, func(t *testing.T) {
				s, ctx := New(db, o), t.Context()
				want := func(err, want error) {
					t.Helper()
					if !errors.Is(err, want) {
						t.Errorf("got %v, want %v", err, want)
					}
				}
				want(s.Accept(ctx, 404, 1), ErrNotFound)
				want(s.Put(ctx, Job{ID: 1, Title: "a", Places: 2}), nil)
				want(s.Accept(ctx, 1, 7), nil)
				want(s.Accept(ctx, 1, 7), nil) // repeated: one place
				want(s.Accept(ctx, 1, 8), nil)
				want(s.Accept(ctx, 1, 9), ErrTaken)
				want(s.Accept(ctx, 1, 7), nil) // repeated after the verdict
				want(s.Cancel(ctx, 1), ErrTaken)
				if w, err := s.Winners(ctx, 1); err != nil || fmt.Sprint(w) != "[7 8]" {
					t.Errorf("winners %v, %v", w, err)
				}
				want(s.Put(ctx, Job{ID: 1, Title: "again", Places: 1}), nil) // opened again
				want(s.Accept(ctx, 1, 9), nil)
				want(s.Put(ctx, Job{ID: 2, Title: "b", Places: 1}), nil)
				want(s.Cancel(ctx, 2), nil)
				want(s.Accept(ctx, 2, 7), ErrCancelled)
				want(s.Accept(ctx, 2, 8), ErrCancelled)
				if j, err := s.Get(ctx, 2); err != nil || j.Status != "cancelled" || j.Taken != 0 {
					t.Errorf("%+v, %v", j, err)
				}
				want(s.Put(ctx, Job{ID: 3, Title: "c", Places: 1}), nil)
				want(s.AcceptOnce(ctx, 3, 7), nil)
				want(s.AcceptOnce(ctx, 3, 8), ErrTaken)
				want(db.Ready(ctx), nil)
			})
		}
	})
}

// TestManyWinnersAreNotNamed: a verdict has 1 KB; winners beyond it are looked up.
func TestManyWinnersAreNotNamed(t *testing.T) {
	s := New(openSQLite(t), Options{Gate: openGate(t, gate.Options{Permits: 3})})
	if err := s.Put(t.Context(), Job{ID: 1, Places: 100}); err != nil {
		t.Fatal(err)
	}
	for n := int64(1); n <= 100; n++ {
		if err := s.Accept(t.Context(), 1, n); err != nil {
			t.Fatal(n, err)
		}
	}
	if err := s.Accept(t.Context(), 1, 101); !errors.Is(err, ErrTaken) {
		t.Error(err)
	}
	if err := s.Accept(t.Context(), 1, 50); err != nil {
		t.Error(err)
	}
}

// TestOldFenceIsRefused: a holder that was stopped beyond its lease writes after its successor: the database refuses it.
func TestOldFenceIsRefused(t *testing.T) { // cases/gate 9
	eachDB(t, func(t *testing.T, db *DB) {
		g := openGate(t, gate.Options{Permits: 1, Lease: 100 * time.Millisecond})
		stopped, goOn := make(chan struct{}), make(chan struct{})
		slow := New(db, Options{Gate: g, OnePermit: true})
		slow.hooks.acquired = func() error { close(stopped); <-goOn; return nil }
		quick := New(db, Options{Gate: g, OnePermit: true})
		if err := quick.Put(t.Context(), Job{ID: 1, Places: 2}); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { _, err := slow.transactAfter(t.Context(), 1, 7); got <- err }()
		<-stopped
		if err := quick.Accept(t.Context(), 1, 8); err != nil {
			t.Fatal(err)
		}
		close(goOn)
		if err := <-got; !errors.Is(err, ErrLate) {
			t.Errorf("the old holder: %v", err)
		}
		if w, err := quick.Winners(t.Context(), 1); err != nil || fmt.Sprint(w) != "[8]" {
			t.Errorf("winners %v, %v", w, err)
		}
	})
}

// transactAfter is Accept of a process that does not notice that it was stopped: it goes on although its permit is over.
func (s *Service) transactAfter(ctx context.Context, job, freelancer int64) (*verdict, error) {
	p, err := s.opts.Gate.Acquire(ctx, jobKey(job), gate.Wait(time.Minute))
	if err != nil {
		return nil, err
	}
	_ = s.hooks.acquired()
	return s.transact(ctx, job, freelancer, p.Fence())
}

var errCrash = errors.New("crashed")

// TestRoundsWithCrashes: 500 callers on one job, some of whom vanish with their permit before or after the commit: one
// winner each time. With USHER_SOAK=1, 1,000 rounds.
func TestRoundsWithCrashes(t *testing.T) {
	rounds := 15
	if testing.Short() {
		rounds = 3
	}
	if os.Getenv("USHER_SOAK") == "1" {
		rounds = 1000
	}
	eachDB(t, func(t *testing.T, db *DB) {
		g := openGate(t, gate.Options{Permits: 20, Lease: 500 * time.Millisecond})
		s := New(db, Options{Gate: g, Wait: time.Minute})
		var crashed atomic.Int64
		crash := func() error {
			if rand.IntN(12) == 0 {
				crashed.Add(1)
				return errCrash
			}
			return nil
		}
		s.hooks = hooks{acquired: crash, committed: crash}
		for round := range rounds {
			job := int64(round + 1)
			if err := s.Put(t.Context(), Job{ID: job, Places: 1}); err != nil {
				t.Fatal(err)
			}
			var won, died atomic.Int64
			var wg sync.WaitGroup
			for c := range 500 {
				wg.Go(func() {
					switch err := s.Accept(t.Context(), job, int64(c+1)); {
					case err == nil:
						won.Add(1)
					case errors.Is(err, errCrash):
						died.Add(1)
					case !errors.Is(err, ErrTaken):
						t.Errorf("round %d: %v", round, err)
					}
				})
			}
			wg.Wait()
			w, err := s.Winners(t.Context(), job)
			if err != nil || len(w) != 1 || won.Load() > 1 {
				t.Fatalf("round %d: winners %v, %d were told so, %d crashed: %v", round, w, won.Load(), died.Load(), err)
			}
		}
		t.Logf("%d rounds, %d crashes", rounds, crashed.Load())
	})
}

// TestVictim is the process that TestKilledInTheMiddle kills.
func TestVictim(t *testing.T) {
	addr, dsn := os.Getenv("USHER_MATCHING_REDIS"), os.Getenv("USHER_MATCHING_DB")
	if addr == "" {
		t.Skip("only as a child of TestKilledInTheMiddle")
	}
	db, err := Open(t.Context(), dsn, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	s := New(db, Options{Gate: redisGate(t, addr), Wait: time.Minute})
	var n atomic.Int64
	s.hooks.acquired = func() error {
		if n.Add(1) == 4 {
			fmt.Println("in the middle")
		}
		select {} // holds its permit until it is killed
	}
	for c := range 10 {
		go func() { _ = s.Accept(context.Background(), 1, int64(1000+c)) }()
	}
	select {}
}

func redisGate(t *testing.T, addr string) *gate.Gate {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	store, err := redis.NewGates(t.Context(), c, redis.GateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gate.New(store, gate.Options{Permits: 4, Lease: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(); c.Close() })
	return g
}

// TestKilledInTheMiddle: a process that holds every permit is killed with kill -9; those who wait in another process get
// the permits when the lease is over, and exactly one wins.
func TestKilledInTheMiddle(t *testing.T) { // cases/gate 1
	addr := startRedis(t)
	dsn := "sqlite:" + filepath.Join(t.TempDir(), "jobs.db")
	db, err := Open(t.Context(), dsn, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	g := redisGate(t, addr)
	s := New(db, Options{Gate: g, Wait: time.Minute})
	if err := s.Put(t.Context(), Job{ID: 1, Places: 1}); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestVictim$", "-test.v")
	child.Env = append(os.Environ(), "USHER_MATCHING_REDIS="+addr, "USHER_MATCHING_DB="+dsn)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	middle := false
	for lines := bufio.NewScanner(out); !middle && lines.Scan(); {
		middle = strings.HasPrefix(lines.Text(), "in the middle")
	}
	var won atomic.Int64
	var wg sync.WaitGroup
	for c := range 200 {
		wg.Go(func() {
			if err := s.Accept(t.Context(), 1, int64(c+1)); err == nil {
				won.Add(1)
			} else if !errors.Is(err, ErrTaken) {
				t.Error(err)
			}
		})
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if !middle {
		t.Fatal("the child never held its permits")
	}
	wg.Wait()
	if w, err := s.Winners(t.Context(), 1); err != nil || len(w) != 1 || won.Load() != 1 {
		t.Errorf("winners %v, %d were told so: %v", w, won.Load(), err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		st, err := g.Status(t.Context(), jobKey(1))
		if err == nil && st.Free == 4 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("permits are not back: %+v, %v", st, err)
		}
	}
}

func TestHTTP(t *testing.T) {
	db := openSQLite(t)
	h := New(db, Options{Gate: openGate(t, gate.Options{Permits: 2})}).Handler(slog.New(slog.DiscardHandler))
	for _, tc := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/health/ready", "", 200, `"ready":true`},
		{"GET", "/jobs/1", "", 404, "not_found"},
		{"GET", "/jobs/x", "", 404, "not_found"},
		{"PUT", "/jobs/1", `{"title":"a","places":0}`, 400, "places"},
		{"PUT", "/jobs/1", `{`, 400, "JSON"},
		{"PUT", "/jobs/1", `{"title":"a","places":1}`, 200, `"status":"open"`},
		{"POST", "/jobs/1/accept", `{}`, 400, "freelancer"},
		{"POST", "/jobs/1/accept", `{"freelancer":7}`, 200, `"accepted":true`},
		{"POST", "/jobs/1/accept", `{"freelancer":7}`, 200, `"accepted":true`},
		{"POST", "/jobs/1/accept", `{"freelancer":8}`, 409, `"code":"taken"`},
		{"POST", "/jobs/1/cancel", ``, 409, `"code":"taken"`},
		{"GET", "/jobs/1", "", 200, `"taken":1`},
		{"POST", "/jobs/9/accept", `{"freelancer":8}`, 404, "not_found"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)))
		if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s %s %s: %d %s", tc.method, tc.path, tc.body, w.Code, w.Body)
		}
	}
	_ = db.Reader.Close()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/health/ready", nil))
	if w.Code != 503 || !strings.Contains(w.Body.String(), "reader") {
		t.Errorf("without its reader: %d %s", w.Code, w.Body)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	for dsn, want := range map[string]string{
		"oracle:x": "begin it with sqlite:", "mysql:nonsense": "database", "jobs.db": "begin it with",
		"ftp://user:hunter2@h/x": "ftp:…@h/x",
	} {
		if _, err := Open(t.Context(), dsn, "", 0); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
	if _, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "a.db"), "postgres://x/y", 0); err == nil || !strings.Contains(err.Error(), "reader is") {
		t.Error(err)
	}
}
