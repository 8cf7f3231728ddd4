package lease

import (
	"bytes"
	"cmp"
	"slices"
)

// Machine is a store's space: what each method of Store decides. Not safe for concurrent use. now is µs since 1970, or 0
// for a store without a clock: fences and generations are max(last + 1, now), so that even a store that forgot
// everything goes on above what it gave out.
type Machine struct {
	workers map[string]*workerState
	rows    map[string]*Row
	by      map[Owner]map[string]*Row // started rows by owner
	floor   uint64
}

type workerState struct {
	row   WorkerRow
	token string
}

// NewMachine makes an empty space whose fences begin above floor.
func NewMachine(floor uint64) *Machine {
	return &Machine{workers: map[string]*workerState{}, rows: map[string]*Row{}, by: map[Owner]map[string]*Row{}, floor: floor}
}

// Floor is above no fence of a resource that was deleted.
func (m *Machine) Floor() uint64 { return m.floor }

// Workers implements Store.
func (m *Machine) Workers() []WorkerRow {
	rows := make([]WorkerRow, 0, len(m.workers))
	for _, w := range m.workers {
		rows = append(rows, w.row)
	}
	slices.SortFunc(rows, func(a, b WorkerRow) int { return cmp.Compare(a.Worker, b.Worker) })
	return rows
}

// Join implements Store.
func (m *Machine) Join(j Join, now int64) Joined {
	w := m.workers[j.Worker]
	if w != nil && !w.row.Dead {
		return Joined{OK: w.token == j.Token, Owner: w.row.Owner}
	}
	var last uint64
	if w != nil {
		last = w.row.Generation
	}
	o := Owner{j.Worker, draw(last, now)}
	m.workers[j.Worker] = &workerState{row: WorkerRow{Owner: o, Cap: j.Cap}, token: j.Token}
	return Joined{OK: true, Owner: o}
}

func draw(last uint64, now int64) uint64 { return max(last+1, uint64(max(now, 0))) }

func (m *Machine) living(o Owner) *WorkerRow {
	if w := m.workers[o.Worker]; w != nil && w.row.Generation == o.Generation && !w.row.Dead {
		return &w.row
	}
	return nil
}

// Beat implements Store.
func (m *Machine) Beat(b Beat) bool {
	w := m.living(b.Owner)
	if w == nil {
		return false
	}
	if b.Beat > w.Beat { // a late one must not bring an old number back: it could be taken for standing still
		w.Beat, w.Held, w.Leaving, w.Info = b.Beat, b.Held, b.Leaving, b.Info
	}
	return true
}

// Mark implements Store.
func (m *Machine) Mark(k Mark) bool {
	w := m.living(k.Owner)
	if w == nil {
		return true
	}
	if w.Beat == k.Beat {
		w.Dead = true
	}
	return w.Dead
}

// Leave implements Store.
func (m *Machine) Leave(o Owner) {
	if w := m.living(o); w != nil {
		w.Dead, w.Held = true, 0
	}
}

// Forget implements Store.
func (m *Machine) Forget(o Owner) {
	if w := m.workers[o.Worker]; w != nil && w.row.Owner == o && w.row.Dead {
		delete(m.workers, o.Worker)
	}
}

// Put implements Store.
func (m *Machine) Put(p Put) Row {
	r := m.rows[p.ID]
	switch {
	case r == nil:
		r = &Row{ID: p.ID, Desired: p.Desired, URL: p.URL, Spec: bytes.Clone(p.Spec), Rev: 1, Fence: m.floor, Cursor: p.Cursor}
		m.rows[p.ID] = r
		m.file(r)
	case !p.IfAbsent && (r.Desired != p.Desired || r.URL != p.URL || !bytes.Equal(r.Spec, p.Spec)):
		m.unfile(r)
		r.Desired, r.URL, r.Spec, r.Rev = p.Desired, p.URL, bytes.Clone(p.Spec), r.Rev+1
		m.file(r)
	}
	return *r
}

// Restore puts a row in as it was kept, and Raise the floor: for engines that keep a machine on a disk.
func (m *Machine) Restore(r Row) {
	if old := m.rows[r.ID]; old != nil {
		m.unfile(old)
	}
	m.rows[r.ID] = &r
	m.file(&r)
}

// RestoreWorker puts a worker's row in: for models of histories.
func (m *Machine) RestoreWorker(w WorkerRow, token string) {
	m.workers[w.Worker] = &workerState{row: w, token: token}
}

// Raise lifts the floor.
func (m *Machine) Raise(floor uint64) { m.floor = max(m.floor, floor) }

// file and unfile keep the started rows of each owner together.
func (m *Machine) file(r *Row) {
	if r.Desired != Started {
		return
	}
	if m.by[r.Owner] == nil {
		m.by[r.Owner] = map[string]*Row{}
	}
	m.by[r.Owner][r.ID] = r
}

func (m *Machine) unfile(r *Row) {
	if delete(m.by[r.Owner], r.ID); len(m.by[r.Owner]) == 0 {
		delete(m.by, r.Owner)
	}
}

// Delete implements Store.
func (m *Machine) Delete(id string) bool {
	r := m.rows[id]
	if r == nil {
		return false
	}
	m.Raise(r.Fence)
	m.unfile(r)
	delete(m.rows, id)
	return true
}

// Get implements Store.
func (m *Machine) Get(ids []string) []Row {
	rows := make([]Row, 0, len(ids))
	for _, id := range ids {
		if r := m.rows[id]; r != nil {
			rows = append(rows, *r)
		}
	}
	return rows
}

// List implements Store.
func (m *Machine) List(after string, limit int) (rows []Row, next string) {
	ids := make([]string, 0, len(m.rows))
	for id := range m.rows {
		if id > after {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	if len(ids) > limit {
		ids = ids[:limit]
		next = ids[limit-1]
	}
	return m.Get(ids), next
}

// Owned implements Store.
func (m *Machine) Owned(o Owner) []Brief { return briefs(m.by[o], nil, len(m.by[o])) }

func briefs(rows map[string]*Row, list []Brief, limit int) []Brief {
	for _, r := range rows {
		if len(list) >= limit {
			break
		}
		list = append(list, r.Brief())
	}
	return list
}

// Orphans implements Store.
func (m *Machine) Orphans(living []Owner, limit int) []Brief {
	list := briefs(m.by[Owner{}], nil, limit)
	for o, rows := range m.by {
		if o != (Owner{}) && !slices.Contains(living, o) {
			list = briefs(rows, list, limit)
		}
	}
	return list
}

// Take implements Store.
func (m *Machine) Take(t Take, now int64) Taken {
	r := m.rows[t.ID]
	if r == nil {
		return Taken{}
	}
	if r.Owner == t.To && r.Fence > t.Fence {
		return Taken{true, *r} // asked again
	}
	if r.Owner != t.From || r.Fence != t.Fence || r.Desired != Started {
		return Taken{false, *r}
	}
	m.unfile(r)
	r.Owner, r.Fence = t.To, draw(r.Fence, now)
	m.file(r)
	return Taken{true, *r}
}

// Release implements Store.
func (m *Machine) Release(l Release) bool {
	r := m.rows[l.ID]
	if r == nil || r.Owner != l.Owner || r.Fence != l.Fence {
		return false
	}
	m.unfile(r)
	r.Owner = Owner{}
	if l.Stop && r.Desired == Started {
		r.Desired, r.Rev = Stopped, r.Rev+1
	}
	m.file(r)
	return true
}

// Flush implements Store.
func (m *Machine) Flush(c Cursor) bool {
	r := m.rows[c.ID]
	if r == nil || r.Owner != c.Owner || r.Fence != c.Fence {
		return false
	}
	r.Cursor = c.Cursor
	return true
}
