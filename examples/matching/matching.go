package matching

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/gate"
)

// Reasons why a freelancer does not get a job.
var (
	ErrTaken     = errors.New("the job is taken")
	ErrCancelled = errors.New("the job was cancelled")
	ErrNotFound  = errors.New("there is no such job")
	// ErrBusy: nobody decided yet, but too many try. Asking again makes sense.
	ErrBusy = errors.New("too many try for this job right now")
	// ErrLate: somebody with a later permit wrote first. The permit had expired.
	ErrLate = errors.New("this try took too long and another came first")
)

// Job is one job.
type Job struct {
	ID           int64  `json:"id"`
	Title        string `json:"title"`
	Status       string `json:"status"` // open, taken, cancelled
	Places       int    `json:"places"`
	Taken        int    `json:"taken"`
	Applications int64  `json:"applications"`
}

// Options of New.
type Options struct {
	// Gate stands in front of the transaction. Default: none, everybody asks the database.
	Gate *gate.Gate
	// Wait is how long an accept waits for its turn; default 5 s. Most wait for the verdict, which comes in milliseconds.
	Wait time.Duration
	// NoSettle keeps the verdict from those who wait. Only to show what settling is worth.
	NoSettle bool
	// VerdictFor is how long a verdict is told; default 30 s. After that one caller learns it from the database and tells it again.
	VerdictFor time.Duration
	// OnePermit: the gate's keys have one permit, so a smaller fence than the row has seen is refused.
	OnePermit bool
}

// Service accepts jobs. Safe for concurrent use.
type Service struct {
	db    *DB
	opts  Options
	hooks hooks
	asked atomic.Int64 // calls that reached the database
}

// hooks are for tests: a crash is a function that does not come back as usual.
type hooks struct{ acquired, committed func() error }

// New makes the service.
func New(db *DB, o Options) *Service {
	if o.Wait <= 0 {
		o.Wait = 5 * time.Second
	}
	if o.VerdictFor <= 0 {
		o.VerdictFor = 30 * time.Second
	}
	return &Service{db: db, opts: o}
}

func jobKey(job int64) string { return fmt.Sprintf("matching:job:%d", job) }

// verdict is what those who wait are told.
type verdict struct {
	Status string  `json:"status"`
	By     []int64 `json:"by,omitempty"` // who has it: a winner who asks again is told so; left out where they are many
}

const maxNamed = 30

func (v verdict) err(freelancer int64) error {
	switch {
	case slices.Contains(v.By, freelancer):
		return nil
	case v.Status == "cancelled":
		return ErrCancelled
	}
	return ErrTaken
}

// Accept gives the freelancer a place in the job, or says why not: ErrTaken, ErrCancelled, ErrNotFound, ErrBusy, ErrLate. Who
// has a place already gets it again, so a lost answer is settled by asking again.
func (s *Service) Accept(ctx context.Context, job, freelancer int64) error {
	if s.opts.Gate == nil {
		_, err := s.transact(ctx, job, freelancer, 0)
		return err
	}
	permit, err := s.opts.Gate.Acquire(ctx, jobKey(job), gate.Wait(s.opts.Wait))
	if err != nil {
		return s.refused(ctx, job, freelancer, err)
	}
	if h := s.hooks.acquired; h != nil {
		if err := h(); err != nil {
			return err // crashed: nothing is released
		}
	}
	defer func() { _ = permit.Release(ctx) }() // also when the database says no (cases/gate 12)
	work, cancel := permit.Context(ctx)
	defer cancel()
	v, err := s.transact(work, job, freelancer, permit.Fence())
	if v != nil && !s.opts.NoSettle {
		text, merr := json.Marshal(v)
		if merr != nil {
			return errors.Join(err, merr)
		}
		// After the commit, even if the permit has expired meanwhile. If it fails, the next one tells.
		_ = permit.Settle(context.WithoutCancel(ctx), string(text), s.opts.VerdictFor)
	}
	return err
}

// refused is what the gate's answer means to a freelancer.
func (s *Service) refused(ctx context.Context, job, freelancer int64, err error) error {
	var settled *gate.SettledError
	switch {
	case errors.As(err, &settled):
		var v verdict
		if jerr := json.Unmarshal([]byte(settled.Verdict), &v); jerr != nil {
			return fmt.Errorf("the verdict on job %d: %w", job, jerr)
		}
		if verr := v.err(freelancer); verr == nil || len(v.By) > 0 {
			return verr
		}
		if _, has, herr := s.placeOf(ctx, s.db.Reader, job, freelancer); herr == nil && has { // too many winners to be named
			return nil
		}
		return v.err(freelancer)
	case errors.Is(err, gate.ErrFull):
		return ErrBusy
	}
	return err
}

func (s *Service) placeOf(ctx context.Context, q interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, job, freelancer int64) (fence int64, has bool, err error) {
	err = q.QueryRowContext(ctx, s.db.q(`SELECT fence FROM acceptances WHERE job_id = ? AND freelancer_id = ?`), job, freelancer).Scan(&fence)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return fence, err == nil, err
}

// transact is the truth. The verdict is set where the job is decided: for those who wait.
func (s *Service) transact(ctx context.Context, job, freelancer int64, fence uint64) (v *verdict, answer error) {
	s.asked.Add(1)
	err := s.db.tx(ctx, func(tx *sql.Tx) error {
		v, answer = nil, nil
		var status string
		var places, taken int
		var seen int64
		err := tx.QueryRowContext(ctx, s.db.q(`SELECT status, places, taken, fence FROM jobs WHERE id = ?`+s.db.forUpdate()), job).
			Scan(&status, &places, &taken, &seen)
		if errors.Is(err, sql.ErrNoRows) {
			answer = ErrNotFound
			return nil
		}
		if err != nil {
			return err
		}
		if _, has, err := s.placeOf(ctx, tx, job, freelancer); err != nil || has {
			return err // a repeat
		}
		switch {
		case status == "cancelled":
			v, answer = &verdict{Status: status}, ErrCancelled
			return nil
		case status != "open" || taken >= places:
			answer = ErrTaken
			v, err = s.decided(ctx, tx, job, places)
			return err
		case s.opts.OnePermit && int64(fence) < seen: // cases/gate 9
			answer = ErrLate
			return nil
		}
		if status = "open"; taken+1 == places {
			status = "taken"
		}
		if _, err := tx.ExecContext(ctx, s.db.q(`UPDATE jobs SET taken = ?, status = ?, fence = ? WHERE id = ?`), taken+1, status, max(seen, int64(fence)), job); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.db.q(`INSERT INTO acceptances (job_id, freelancer_id, fence, at_ms) VALUES (?, ?, ?, ?)`),
			job, freelancer, int64(fence), time.Now().UnixMilli()); err != nil {
			return err
		}
		if status == "taken" {
			v, err = s.decided(ctx, tx, job, places)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if h := s.hooks.committed; h != nil {
		if err := h(); err != nil {
			return nil, err
		}
	}
	return v, answer
}

// decided is the verdict of a job whose places are gone.
func (s *Service) decided(ctx context.Context, tx *sql.Tx, job int64, places int) (*verdict, error) {
	v := &verdict{Status: "taken"}
	if places > maxNamed || s.opts.Gate == nil || s.opts.NoSettle {
		return v, nil
	}
	rows, err := tx.QueryContext(ctx, s.db.q(`SELECT freelancer_id FROM acceptances WHERE job_id = ?`), job)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		v.By = append(v.By, id)
	}
	return v, rows.Err()
}

// AcceptOnce is Accept as one conditional statement, without reasons and without a gate, for jobs of one place: all that has
// to be verified is in the row, and so is the winner.
func (s *Service) AcceptOnce(ctx context.Context, job, freelancer int64) error {
	s.asked.Add(1)
	res, err := s.db.Writer.ExecContext(ctx, s.db.q(`UPDATE jobs SET status = 'taken', taken = 1, winner = ?
		WHERE id = ? AND status = 'open' AND places = 1 AND taken = 0`), freelancer, job)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return ErrTaken // or one of the others: a row that was not changed does not say why
}

// Apply counts an application: the other kind of hot row, which everybody must write. There is nothing to settle.
func (s *Service) Apply(ctx context.Context, job int64) error {
	work := func(ctx context.Context) error {
		return s.db.tx(ctx, func(tx *sql.Tx) error {
			var n int64
			err := tx.QueryRowContext(ctx, s.db.q(`SELECT applications FROM jobs WHERE id = ?`+s.db.forUpdate()), job).Scan(&n)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, s.db.q(`UPDATE jobs SET applications = ? WHERE id = ?`), n+1, job)
			return err
		})
	}
	if s.opts.Gate == nil {
		return work(ctx)
	}
	return s.opts.Gate.Do(ctx, jobKey(job), func(ctx context.Context, _ *gate.Permit) error { return work(ctx) }, gate.Wait(s.opts.Wait))
}

// Put makes a job, open and with all its places, whatever it was, and opens its gate again.
func (s *Service) Put(ctx context.Context, j Job) error {
	if j.Places < 1 || j.Places > 1_000_000 {
		return fmt.Errorf("places is %d, must be 1 to 1000000", j.Places)
	}
	err := s.db.tx(ctx, func(tx *sql.Tx) error {
		for _, q := range []string{`DELETE FROM acceptances WHERE job_id = ?`, `DELETE FROM jobs WHERE id = ?`} {
			if _, err := tx.ExecContext(ctx, s.db.q(q), j.ID); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, s.db.q(`INSERT INTO jobs (id, title, status, places, taken, applications, fence, winner) VALUES (?, ?, 'open', ?, 0, 0, 0, 0)`), j.ID, j.Title, j.Places)
		return err
	})
	if err != nil || s.opts.Gate == nil {
		return err
	}
	// First the row, then the gate: a holder who saw the old row has a smaller fence, and cannot settle any more.
	_, err = s.opts.Gate.Reopen(ctx, jobKey(j.ID))
	return err
}

// Cancel closes a job that is open: a valid transition from nothing else.
func (s *Service) Cancel(ctx context.Context, job int64) error {
	res, err := s.db.Writer.ExecContext(ctx, s.db.q(`UPDATE jobs SET status = 'cancelled' WHERE id = ? AND status = 'open'`), job)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	j, err := s.Get(ctx, job)
	if err == nil && j.Status == "taken" {
		err = ErrTaken
	}
	return err
}

// Get reads a job; it may be a little old where a reader is set.
func (s *Service) Get(ctx context.Context, job int64) (j Job, err error) {
	err = s.db.Reader.QueryRowContext(ctx, s.db.q(`SELECT id, title, status, places, taken, applications FROM jobs WHERE id = ?`), job).
		Scan(&j.ID, &j.Title, &j.Status, &j.Places, &j.Taken, &j.Applications)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	return j, err
}

// Winners reads who has a place, from the writer.
func (s *Service) Winners(ctx context.Context, job int64) (ids []int64, err error) {
	rows, err := s.db.Writer.QueryContext(ctx, s.db.q(`SELECT freelancer_id FROM acceptances WHERE job_id = ?
		UNION SELECT winner FROM jobs WHERE id = ? AND winner <> 0 ORDER BY 1`), job, job)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
