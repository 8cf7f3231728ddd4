package matching

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/ushergo/usher/gate"
)

// Storm is a load on one row and what came of it.
type Storm struct {
	Name    string
	Callers int
	Each    int // calls of each caller, one after the other
	Places  int // of the job

	Answers []time.Duration // sorted
	Total   time.Duration
	Winners int
	Asked   int64 // calls that reached the database
	Busy    int   // most connections in use at once
	Queued  time.Duration
	Locked  time.Duration // lock wait, summed over connections, as the database tells or as sampled
	Errors  map[string]int
}

// P is the q-th quantile of the answers.
func (s *Storm) P(q float64) time.Duration {
	if len(s.Answers) == 0 {
		return 0
	}
	return s.Answers[min(int(q*float64(len(s.Answers))), len(s.Answers)-1)]
}

// Print writes a table of storms.
func Print(w io.Writer, storms []*Storm) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "case\tcalls\ttotal ms\tp50 ms\tp95 ms\tp99 ms\tmax ms\twinners\tasked the database\tbusy conns\tconn wait ms\tlock wait ms\terrors\t")
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }
	for _, s := range storms {
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%v\t\n", s.Name, len(s.Answers), ms(s.Total),
			ms(s.P(.5)), ms(s.P(.95)), ms(s.P(.99)), ms(s.P(1)), s.Winners, s.Asked, s.Busy, ms(s.Queued), ms(s.Locked), len(s.Errors))
	}
	return tw.Flush()
}

// Run lets all callers begin at one moment and waits for their answers. call is one call; expected answers are no errors.
func (s *Storm) Run(ctx context.Context, db *DB, call func(ctx context.Context, caller int64) error, expected ...error) error {
	s.Each = max(s.Each, 1)
	s.Errors = map[string]int{}
	probe := startProbe(ctx, db)
	begin := make(chan struct{})
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range s.Callers {
		wg.Go(func() {
			<-begin
			for range s.Each {
				start := time.Now()
				err := call(ctx, int64(c+1))
				took := time.Since(start)
				mu.Lock()
				s.Answers = append(s.Answers, took)
				if err != nil && !slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
					s.Errors[err.Error()]++
				}
				mu.Unlock()
			}
		})
	}
	start := time.Now()
	close(begin)
	wg.Wait()
	s.Total = time.Since(start)
	slices.Sort(s.Answers)
	var err error
	s.Busy, s.Queued, s.Locked, err = probe()
	return err
}

// startProbe watches the pool and the database's locks until the function returned is called.
func startProbe(ctx context.Context, db *DB) func() (busy int, queued, locked time.Duration, err error) {
	before := db.Writer.Stats()
	lock, lockErr := db.lockTime(ctx)
	stop, done := make(chan struct{}), make(chan struct{})
	var most int
	var sampled time.Duration
	go func() {
		defer close(done)
		const every = 2 * time.Millisecond
		tick := time.NewTicker(every)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			most = max(most, db.Writer.Stats().InUse)
			if n, ok := db.lockWaiters(ctx); ok {
				sampled += time.Duration(n) * time.Since(last)
			}
			last = time.Now()
		}
	}()
	return func() (int, time.Duration, time.Duration, error) {
		close(stop)
		<-done
		after := db.Writer.Stats()
		locked := sampled
		if lockErr == nil && db.dialect == mariaDB {
			now, err := db.lockTime(ctx)
			if err != nil {
				return 0, 0, 0, err
			}
			locked = now - lock
		}
		return most, after.WaitDuration - before.WaitDuration, locked, lockErr
	}
}

// lockTime is MariaDB's own sum of waits for row locks.
func (db *DB) lockTime(ctx context.Context) (time.Duration, error) {
	if db.dialect != mariaDB {
		return 0, nil
	}
	var name string
	var ms int64
	err := db.Reader.QueryRowContext(ctx, `SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_time'`).Scan(&name, &ms)
	return time.Duration(ms) * time.Millisecond, err
}

// lockWaiters is how many of PostgreSQL's sessions wait for a lock now.
func (db *DB) lockWaiters(ctx context.Context) (n int, ok bool) {
	if db.dialect != postgresDB || db.Reader == db.Writer {
		return 0, false
	}
	err := db.Reader.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'`).Scan(&n)
	return n, err == nil
}

// Winner runs one storm for one job: callers accept it, and exactly as many as it has places must win.
func Winner(ctx context.Context, db *DB, s *Storm, svc *Service, job int64, accept func(context.Context, int64, int64) error) error {
	if err := svc.Put(ctx, Job{ID: job, Title: "storm", Places: s.Places}); err != nil {
		return err
	}
	if accept == nil {
		accept = svc.Accept
	}
	before := svc.asked.Load()
	if err := s.Run(ctx, db, func(ctx context.Context, c int64) error { return accept(ctx, job, c) }, ErrTaken); err != nil {
		return err
	}
	s.Asked = svc.asked.Load() - before
	winners, err := svc.Winners(ctx, job)
	s.Winners = len(winners)
	if err == nil && s.Winners != min(s.Places, s.Callers) {
		err = fmt.Errorf("%s: %d winners, want %d", s.Name, s.Winners, s.Places)
	}
	return err
}

// Writers runs one storm in which everybody must write the row; none may be lost.
func Writers(ctx context.Context, db *DB, s *Storm, svc *Service, job int64) error {
	if err := svc.Put(ctx, Job{ID: job, Title: "storm", Places: 1}); err != nil {
		return err
	}
	if err := s.Run(ctx, db, func(ctx context.Context, _ int64) error { return svc.Apply(ctx, job) }); err != nil {
		return err
	}
	s.Asked = int64(s.Callers * s.Each)
	var n int64
	err := db.Writer.QueryRowContext(ctx, db.q(`SELECT applications FROM jobs WHERE id = ?`), job).Scan(&n)
	if err == nil && n != s.Asked {
		err = fmt.Errorf("%s: %d applications counted, want %d", s.Name, n, s.Asked)
	}
	return err
}

// Tables runs every case and prints them. gates makes a gate with that many permits a key.
func Tables(ctx context.Context, w io.Writer, db *DB, callers, each int, gates func(permits int) (*gate.Gate, error)) error {
	four, err := gates(4)
	if err != nil {
		return err
	}
	defer four.Close()
	twenty, err := gates(20)
	if err != nil {
		return err
	}
	defer twenty.Close()
	bare := New(db, Options{})
	blind := New(db, Options{Gate: twenty, NoSettle: true, Wait: time.Minute})
	told := New(db, Options{Gate: twenty, Wait: time.Minute})
	job := time.Now().UnixMicro()
	next := func() int64 { job++; return job }

	var list []*Storm
	one := func(name string, places int, svc *Service, accept func(context.Context, int64, int64) error) error {
		s := &Storm{Name: name, Callers: callers, Places: places}
		list = append(list, s)
		return Winner(ctx, db, s, svc, next(), accept)
	}
	if err := one("(warming up)", 1, bare, nil); err != nil {
		return err
	}
	list = nil
	for _, err := range []error{
		one("one winner, no gate", 1, bare, nil),
		one("one winner, gate 20, not settled", 1, blind, nil),
		one("one winner, gate 20, settled", 1, told, nil),
		one("one winner, one UPDATE, no gate", 1, bare, bare.AcceptOnce),
		one("five winners, no gate", 5, bare, nil),
		one("five winners, gate 4, settled", 5, New(db, Options{Gate: four, Wait: time.Minute}), nil),
		one("five winners, gate 20, settled", 5, told, nil),
	} {
		if err != nil {
			return err
		}
	}
	for _, tc := range []struct {
		name string
		svc  *Service
	}{{"no gate", bare}, {"gate 20, settled", told}} {
		if err := overHTTP(tc.svc, func(accept func(context.Context, int64, int64) error) error {
			// Once to open the connections, which is not what is looked at.
			if err := one("", 1, tc.svc, accept); err != nil {
				return err
			}
			list = list[:len(list)-1]
			return one("one winner over HTTP, "+tc.name, 1, tc.svc, accept)
		}); err != nil {
			return err
		}
	}
	for _, tc := range []struct {
		name string
		svc  *Service
	}{
		{"all write, no gate", bare}, {"all write, gate 20", New(db, Options{Gate: twenty, Wait: time.Minute})}, {"all write, gate 4", New(db, Options{Gate: four, Wait: time.Minute})},
	} {
		for _, n := range []int{1, each} {
			s := &Storm{Name: tc.name, Callers: callers, Each: n}
			list = append(list, s)
			if err := Writers(ctx, db, s, tc.svc, next()); err != nil {
				return err
			}
		}
	}
	return Print(w, list)
}

// overHTTP serves svc and hands over an accept that goes through it.
func overHTTP(svc *Service, use func(accept func(context.Context, int64, int64) error) error) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: svc.Handler(slog.New(slog.DiscardHandler)), ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	defer client.CloseIdleConnections()
	return use(func(ctx context.Context, job, freelancer int64) error {
		url := fmt.Sprintf("http://%s/jobs/%d/accept", l.Addr(), job)
		req, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader(fmt.Appendf(nil, `{"freelancer":%d}`, freelancer)))
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		var doc struct{ Code, Detail string }
		if err := json.NewDecoder(res.Body).Decode(&doc); err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, res.Body)
		switch doc.Code {
		case "":
			return nil
		case "taken":
			return ErrTaken
		}
		return fmt.Errorf("%d %s: %s", res.StatusCode, doc.Code, doc.Detail)
	})
}
