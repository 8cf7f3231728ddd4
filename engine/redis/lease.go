package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/lease"
)

// Leases is a space of leases in Redis or Valkey, version 6 or later: single, Sentinel or Cluster. It implements lease.Store
// and lease.Watcher.
//
// Layout, for a space S, all in one slot:
//
//	usher:lease:{S}           hash: v 1, floor (the greatest fence of those deleted)
//	usher:lease:{S}:workers   hash: worker → generation beat held cap leaving dead info token
//	usher:lease:{S}:r:ID      hash: v 1, desired, url, spec, rev, owner (worker#generation; -: nobody), fence, cursor
//	usher:lease:{S}:ids       zset: all ids, for pages
//	usher:lease:{S}:of:OWNER  set: its started ids; usher:lease:{S}:owners: those who have some
//	usher:lease:{S}:told      channel: something was made, started, stopped, deleted or released, or a worker left
//
// Fences and generations are max(last + 1, the server's time in µs), so they grow also after a failover that lost the latest
// writes. Such a failover may bring a row's earlier owner back; its fence is smaller than what its successor has shown.
type Leases struct {
	client rueidis.Client
	space  string
	base   string
}

var (
	_ lease.Store   = (*Leases)(nil)
	_ lease.Watcher = (*Leases)(nil)
)

// NewLeases is a space on a client that stays the caller's to close.
func NewLeases(client rueidis.Client, space string) (*Leases, error) {
	if err := lease.CheckSpace(space); err != nil {
		return nil, err
	}
	return &Leases{client: client, space: space, base: "usher:lease:{" + space + "}"}, nil
}

var (
	//go:embed lease.lua
	leaseSource string

	leaseScript = rueidis.NewLuaScript(leaseSource)
)

// leaseChunk is how many rows one call reads or writes: well under 5 ms of the server's time.
const leaseChunk = 100

func (s *Leases) run(ctx context.Context, args ...string) (rueidis.RedisMessage, error) {
	if err := ctx.Err(); err != nil {
		return rueidis.RedisMessage{}, fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
	}
	msg, err := leaseScript.Exec(ctx, s.client, []string{s.base}, args).ToMessage()
	if err != nil {
		return msg, s.failure(err)
	}
	return msg, nil
}

// failure tells what was certainly not done from what may have been.
func (s *Leases) failure(err error) error {
	var re *rueidis.RedisError
	var op *net.OpError
	switch {
	case errors.As(err, &re):
		if _, what, ok := strings.Cut(re.Error(), "USHERLAYOUT "); ok {
			return fmt.Errorf("redis: %s: %w", what, lease.ErrForeign)
		}
		return fmt.Errorf("%w: redis: leases %s: %w", lease.ErrUnavailable, s.space, err)
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, rueidis.ErrClosing):
		return fmt.Errorf("%w: redis: leases %s: %w", lease.ErrUnavailable, s.space, err)
	}
	return fmt.Errorf("%w: redis: leases %s: %w", lease.ErrUnknown, s.space, err)
}

func (s *Leases) strange(err error) error {
	return fmt.Errorf("%w: redis: leases %s: a script gave something else than it does: %w", lease.ErrUnknown, s.space, err)
}

// yes asks for a yes or no.
func (s *Leases) yes(ctx context.Context, bad error, args ...string) (bool, error) {
	if bad != nil {
		return false, bad
	}
	msg, err := s.run(ctx, args...)
	if err != nil {
		return false, err
	}
	v, err := msg.ToString()
	if err != nil {
		return false, s.strange(err)
	}
	return v == "1", nil
}

func leaseNumber(n uint64) string { return strconv.FormatUint(n, 10) }

func leaseBool(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func leaseOwner(o lease.Owner) string {
	if o == (lease.Owner{}) {
		return "-"
	}
	return o.String()
}

func readLeaseOwner(s string) (lease.Owner, error) {
	if s == "-" {
		return lease.Owner{}, nil
	}
	name, gen, ok := strings.Cut(s, "#")
	n, err := strconv.ParseUint(gen, 10, 64)
	if !ok || err != nil {
		return lease.Owner{}, fmt.Errorf("%w: owner %q", lease.ErrForeign, s)
	}
	return lease.Owner{Worker: name, Generation: n}, nil
}

// Workers implements lease.Store.
func (s *Leases) Workers(ctx context.Context) ([]lease.WorkerRow, error) {
	msg, err := s.run(ctx, "workers")
	if err != nil {
		return nil, err
	}
	all, err := msg.AsStrSlice()
	if err != nil {
		return nil, s.strange(err)
	}
	var rows []lease.WorkerRow
	for pair := range slices.Chunk(all, 2) {
		w := lease.WorkerRow{Owner: lease.Owner{Worker: pair[0]}}
		var leaving, dead int
		if _, err := fmt.Sscanf(pair[1], "%d %d %d %d %d %d %s", &w.Generation, &w.Beat, &w.Held, &w.Cap, &leaving, &dead, &w.Info); err != nil {
			return nil, fmt.Errorf("redis: key %s:workers has a field %s that is none of ours; move it away, or use another space: %w", s.base, pair[0], lease.ErrForeign)
		}
		w.Leaving, w.Dead = leaving == 1, dead == 1
		w.Info = strings.TrimPrefix(w.Info, "-")
		rows = append(rows, w)
	}
	return rows, nil
}

// Join implements lease.Store.
func (s *Leases) Join(ctx context.Context, j lease.Join) (lease.Joined, error) {
	if err := j.Check(); err != nil {
		return lease.Joined{}, err
	}
	msg, err := s.run(ctx, "join", j.Worker, j.Token, strconv.Itoa(j.Cap))
	if err != nil {
		return lease.Joined{}, err
	}
	v, err := msg.AsStrSlice()
	if err != nil || len(v) != 2 {
		return lease.Joined{}, s.strange(fmt.Errorf("%d values, %v", len(v), err))
	}
	gen, err := strconv.ParseUint(v[1], 10, 64)
	if err != nil {
		return lease.Joined{}, s.strange(err)
	}
	return lease.Joined{OK: v[0] == "1", Owner: lease.Owner{Worker: j.Worker, Generation: gen}}, nil
}

// Beat implements lease.Store.
func (s *Leases) Beat(ctx context.Context, b lease.Beat) (bool, error) {
	return s.yes(ctx, b.Check(), "beat", b.Worker, leaseNumber(b.Generation), leaseNumber(b.Beat), strconv.Itoa(b.Held), leaseBool(b.Leaving), "-"+b.Info)
}

// Mark implements lease.Store.
func (s *Leases) Mark(ctx context.Context, m lease.Mark) (bool, error) {
	return s.yes(ctx, m.Owner.Check(), "mark", m.Worker, leaseNumber(m.Generation), leaseNumber(m.Beat))
}

// Leave implements lease.Store.
func (s *Leases) Leave(ctx context.Context, o lease.Owner) error {
	_, err := s.yes(ctx, o.Check(), "leave", o.Worker, leaseNumber(o.Generation))
	return err
}

// Forget implements lease.Store.
func (s *Leases) Forget(ctx context.Context, o lease.Owner) error {
	_, err := s.yes(ctx, o.Check(), "forget", o.Worker, leaseNumber(o.Generation))
	return err
}

// leaseRow reads what lease.lua's answer gives.
func (s *Leases) leaseRow(msg rueidis.RedisMessage) (lease.Row, error) {
	v, err := msg.AsStrSlice()
	if err != nil || len(v) != 8 {
		return lease.Row{}, s.strange(fmt.Errorf("a row of %d values, %v", len(v), err))
	}
	r := lease.Row{ID: v[0], Desired: lease.Desired(v[1]), URL: v[2], Spec: []byte(v[3]), Cursor: v[7]}
	var errs [3]error
	r.Rev, errs[0] = strconv.ParseUint(v[4], 10, 64)
	r.Owner, errs[1] = readLeaseOwner(v[5])
	r.Fence, errs[2] = strconv.ParseUint(v[6], 10, 64)
	if err := errors.Join(errs[:]...); err != nil {
		return lease.Row{}, s.strange(err)
	}
	return r, nil
}

func (s *Leases) leaseRows(rows []lease.Row, msg rueidis.RedisMessage) ([]lease.Row, error) {
	list, err := msg.ToArray()
	if err != nil {
		return nil, s.strange(err)
	}
	for _, m := range list {
		r, err := s.leaseRow(m)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// Put implements lease.Store.
func (s *Leases) Put(ctx context.Context, p lease.Put) (lease.Row, error) {
	if err := p.Check(); err != nil {
		return lease.Row{}, err
	}
	msg, err := s.run(ctx, "put", p.ID, string(p.Desired), p.URL, string(p.Spec), p.Cursor, leaseBool(p.IfAbsent))
	if err != nil {
		return lease.Row{}, err
	}
	return s.leaseRow(msg)
}

// Delete implements lease.Store.
func (s *Leases) Delete(ctx context.Context, id string) (bool, error) {
	return s.yes(ctx, lease.CheckID(id), "delete", id)
}

// Get implements lease.Store.
func (s *Leases) Get(ctx context.Context, ids []string) (rows []lease.Row, err error) {
	if err := lease.CheckIDs(ids); err != nil {
		return nil, err
	}
	for some := range slices.Chunk(ids, leaseChunk) {
		msg, err := s.run(ctx, append([]string{"get"}, some...)...)
		if err != nil {
			return nil, err
		}
		if rows, err = s.leaseRows(rows, msg); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// List implements lease.Store, by id.
func (s *Leases) List(ctx context.Context, after string, limit int) (rows []lease.Row, next string, err error) {
	if err := lease.CheckList(after, limit); err != nil {
		return nil, "", err
	}
	for len(rows) < limit {
		n := min(leaseChunk, limit-len(rows))
		msg, err := s.run(ctx, "list", after, strconv.Itoa(n))
		if err != nil {
			return nil, "", err
		}
		before := len(rows)
		if rows, err = s.leaseRows(rows, msg); err != nil {
			return nil, "", err
		}
		if len(rows)-before < n {
			return rows, "", nil
		}
		after = rows[len(rows)-1].ID
	}
	return rows, after, nil
}

// of reads the started rows of one owner onto list, a few at a time.
func (s *Leases) of(ctx context.Context, list []lease.Brief, owner string, limit int) ([]lease.Brief, error) {
	seen := map[string]bool{} // SSCAN may say one twice
	for cursor := ""; cursor != "0" && len(list) < limit; {
		if cursor == "" {
			cursor = "0"
		}
		msg, err := s.run(ctx, "of", owner, cursor, strconv.Itoa(leaseChunk))
		if err != nil {
			return nil, err
		}
		v, err := msg.AsStrSlice()
		if err != nil || len(v)%4 != 1 {
			return nil, s.strange(fmt.Errorf("%d values, %v", len(v), err))
		}
		cursor = v[0]
		for f := range slices.Chunk(v[1:], 4) {
			o, oerr := readLeaseOwner(f[1])
			fence, ferr := strconv.ParseUint(f[2], 10, 64)
			rev, rerr := strconv.ParseUint(f[3], 10, 64)
			if err := errors.Join(oerr, ferr, rerr); err != nil {
				return nil, s.strange(err)
			}
			if !seen[f[0]] && len(list) < limit {
				list = append(list, lease.Brief{ID: f[0], Owner: o, Fence: fence, Rev: rev})
			}
			seen[f[0]] = true
		}
	}
	return list, nil
}

// Owned implements lease.Store.
func (s *Leases) Owned(ctx context.Context, o lease.Owner) ([]lease.Brief, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	return s.of(ctx, nil, o.String(), 1<<30)
}

// Orphans implements lease.Store.
func (s *Leases) Orphans(ctx context.Context, living []lease.Owner, limit int) (list []lease.Brief, err error) {
	msg, err := s.run(ctx, "owners")
	if err != nil {
		return nil, err
	}
	owners, err := msg.AsStrSlice()
	if err != nil {
		return nil, s.strange(err)
	}
	for _, o := range owners {
		lives := slices.ContainsFunc(living, func(l lease.Owner) bool { return l.String() == o })
		if lives || len(list) >= limit {
			continue
		}
		if list, err = s.of(ctx, list, o, limit); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Take implements lease.Store.
func (s *Leases) Take(ctx context.Context, t lease.Take) (lease.Taken, error) {
	if err := t.Check(); err != nil {
		return lease.Taken{}, err
	}
	msg, err := s.run(ctx, "take", t.ID, leaseOwner(t.From), leaseNumber(t.Fence), t.To.String())
	if err != nil {
		return lease.Taken{}, err
	}
	v, err := msg.ToArray()
	if err != nil || len(v) == 0 {
		return lease.Taken{}, s.strange(err)
	}
	ok, err := v[0].ToString()
	if err != nil {
		return lease.Taken{}, s.strange(err)
	}
	if len(v) == 1 {
		return lease.Taken{}, nil
	}
	row, err := s.leaseRow(v[1])
	return lease.Taken{OK: ok == "1", Row: row}, err
}

// Release implements lease.Store.
func (s *Leases) Release(ctx context.Context, r lease.Release) (bool, error) {
	return s.yes(ctx, r.Check(), "release", r.ID, r.Owner.String(), leaseNumber(r.Fence), leaseBool(r.Stop))
}

// Flush implements lease.Store.
func (s *Leases) Flush(ctx context.Context, cs []lease.Cursor) ([]bool, error) {
	if err := lease.CheckCursors(cs); err != nil {
		return nil, err
	}
	done := make([]bool, 0, len(cs))
	for some := range slices.Chunk(cs, leaseChunk) {
		args := []string{"flush"}
		for _, c := range some {
			args = append(args, c.ID, c.Owner.String(), leaseNumber(c.Fence), c.Cursor)
		}
		msg, err := s.run(ctx, args...)
		if err != nil {
			return nil, err
		}
		v, err := msg.AsStrSlice()
		if err != nil || len(v) != len(some) {
			return nil, s.strange(fmt.Errorf("%d values for %d cursors, %v", len(v), len(some), err))
		}
		for _, ok := range v {
			done = append(done, ok == "1")
		}
	}
	return done, nil
}

// Watch implements lease.Watcher. It subscribes anew, after a pause that doubles to a second, as often as it must, and wakes
// each time.
func (s *Leases) Watch(ctx context.Context, wake func()) error {
	err := listen(ctx, s.client, func() rueidis.Completed { return s.client.B().Subscribe().Channel(s.base + ":told").Build() }, wake)
	if refused := (errListen{}); errors.As(err, &refused) {
		return fmt.Errorf("%w: redis: leases %s: %w", lease.ErrUnavailable, s.space, refused.error)
	}
	return err
}

// Health implements lease.Store.
func (s *Leases) Health() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.client.Do(ctx, s.client.B().Ping().Build()).Error(); err != nil {
		return fmt.Errorf("%w: redis: %w; see that it runs and that engine.addrs and the password are right", lease.ErrUnavailable, err)
	}
	return nil
}
