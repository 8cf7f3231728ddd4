package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/lease"
)

// leaseBook is what a space of leases keeps on the disk: each change of a resource, in order.
type leaseBook struct {
	journal  *journal.Journal // nil: nothing is kept
	snapshot journal.Pos
}

// leasePage is one record, and a snapshot of all: later records go over earlier ones.
type leasePage struct {
	Floor   uint64            `json:"floor,omitempty"`
	Rows    []lease.Row       `json:"rows,omitempty"`
	Owners  []leaseOwner      `json:"owners,omitempty"`
	Cursors map[string]string `json:"cursors,omitempty"`
	Deleted []string          `json:"deleted,omitempty"`
}

// leaseOwner is what a take or a release changes.
type leaseOwner struct {
	ID      string        `json:"id"`
	Desired lease.Desired `json:"desired"`
	Rev     uint64        `json:"rev"`
	Owner   lease.Owner   `json:"owner"`
	Fence   uint64        `json:"fence"`
}

func ownerOf(r lease.Row) leaseOwner { return leaseOwner{r.ID, r.Desired, r.Rev, r.Owner, r.Fence} }

func openLeaseBook(dir string, m *lease.Machine, opts journal.Options) (*leaseBook, error) {
	b := &leaseBook{}
	if dir == "" {
		return b, nil
	}
	j, err := journal.Open(dir, opts)
	if err != nil {
		return nil, err
	}
	b.journal = j
	if err := b.restore(m); err != nil {
		_ = j.Close()
		return nil, err
	}
	return b, nil
}

func (b *leaseBook) restore(m *lease.Machine) error {
	pos, r, ok, err := b.journal.LatestSnapshot()
	if err != nil {
		return err
	}
	if ok {
		rec, err := io.ReadAll(r)
		if cerr := r.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
		if err := turn(m, rec); err != nil {
			return err
		}
		b.snapshot = pos
	} else if f := b.journal.Floor(); f != 0 {
		return fmt.Errorf("the log begins at %d and there is no snapshot of what was before: restore the folder from a copy, or move it away to begin anew", f)
	}
	_, err = b.journal.Replay(b.snapshot, func(_ journal.Pos, rec []byte) error { return turn(m, rec) })
	return err
}

// turn brings one page into the machine.
func turn(m *lease.Machine, rec []byte) error {
	var p leasePage
	if err := json.Unmarshal(rec, &p); err != nil {
		return fmt.Errorf("a record that is none of ours: %w", err)
	}
	m.Raise(p.Floor)
	for _, r := range p.Rows {
		m.Restore(r)
	}
	change := func(id string, f func(r *lease.Row)) {
		for _, r := range m.Get([]string{id}) {
			f(&r)
			m.Restore(r)
		}
	}
	for _, o := range p.Owners {
		change(o.ID, func(r *lease.Row) { r.Desired, r.Rev, r.Owner, r.Fence = o.Desired, o.Rev, o.Owner, o.Fence })
	}
	for id, cursor := range p.Cursors {
		change(id, func(r *lease.Row) { r.Cursor = cursor })
	}
	for _, id := range p.Deleted {
		m.Delete(id)
	}
	return nil
}

// everything is a page of the whole space.
func everything(m *lease.Machine) *leasePage {
	rows, _ := m.List("", math.MaxInt)
	return &leasePage{Floor: m.Floor(), Rows: rows}
}

// ready is asked before the machine takes a step.
func (b *leaseBook) ready() error {
	if b.journal == nil {
		return nil
	}
	if err := errors.Join(b.journal.Err(), b.journal.Ready()); err != nil {
		return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
	}
	return nil
}

// write appends a page. Called in the order of the changes.
func (b *leaseBook) write(p *leasePage) (journal.Pos, error) {
	if b.journal == nil || p.empty() {
		return 0, nil
	}
	rec, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	pos, err := b.journal.Append(rec)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", lease.ErrUnknown, err)
	}
	return pos, nil
}

func (p *leasePage) empty() bool {
	return p.Floor == 0 && len(p.Rows)+len(p.Owners)+len(p.Cursors)+len(p.Deleted) == 0
}

func (b *leaseBook) sync(ctx context.Context, pos journal.Pos) error {
	if b.journal == nil || pos == 0 {
		return nil
	}
	if err := b.journal.Sync(ctx, pos); err != nil {
		return fmt.Errorf("%w: %w", lease.ErrUnknown, err)
	}
	return nil
}

const leaseSnapshot = 16 << 20 // bytes of log between two snapshots

func (b *leaseBook) grown() bool {
	return b.journal != nil && b.journal.Durable()-b.snapshot >= leaseSnapshot
}

// snap keeps a page of everything as of pos, and drops what came before.
func (b *leaseBook) snap(ctx context.Context, page *leasePage, pos journal.Pos) error {
	if err := b.journal.Sync(ctx, pos); err != nil {
		return err
	}
	if err := b.journal.Snapshot(ctx, pos, func(w io.Writer) error { return json.NewEncoder(w).Encode(page) }); err != nil {
		return err
	}
	b.snapshot = pos
	_, err := b.journal.Trim(journal.Keep{From: pos})
	return err
}

func (b *leaseBook) close() error {
	if b.journal == nil {
		return nil
	}
	if err := b.journal.Close(); !errors.Is(err, journal.ErrClosed) {
		return err
	}
	return nil
}
