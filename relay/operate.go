package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ushergo/usher/lease"
)

// From is where a relay begins, or begins again.
type From struct {
	Newest bool      // with what happens from now on
	At     time.Time // with what happened at that time or later
	After  Position  // behind that position; only for a source with one partition
}

// A cursor as it is kept: a Position, or one of these. Positions do not begin with "!".
const (
	cursorEnd    = "!end"    // the partition has been read to its end
	cursorOldest = "!oldest" // from the oldest event kept
	cursorAt     = "!at "    // and a time: from the first event that happened then or later
)

// cursor is how f is kept. Newest becomes a time, so that partitions that are found later lack nothing.
func (f From) cursor() string {
	switch {
	case f.After != "":
		return string(f.After)
	case !f.At.IsZero():
		return cursorAt + f.At.UTC().Format(time.RFC3339Nano)
	case f.Newest:
		return cursorAt + time.Now().UTC().Format(time.RFC3339Nano)
	}
	return cursorOldest
}

func readCursor(cursor string) Start {
	if at, ok := strings.CutPrefix(cursor, cursorAt); ok {
		t, err := time.Parse(time.RFC3339Nano, at)
		if err == nil {
			return Start{At: t}
		}
	}
	if strings.HasPrefix(cursor, "!") {
		return Start{}
	}
	return Start{After: Position(cursor)}
}

// Pause gives up all partitions, on all nodes, until Resume. Sends under way are finished.
func (r *Relay) Pause(ctx context.Context) error { return r.setPaused(ctx, true) }

// Resume goes on: after Pause, and behind gaps at which the relay has stopped.
func (r *Relay) Resume(ctx context.Context) error { return r.setPaused(ctx, false) }

func (r *Relay) setPaused(ctx context.Context, paused bool) error {
	m, err := r.state.marker(ctx)
	if err != nil {
		return err
	}
	m.Paused = paused
	if !paused {
		m.Resumed = map[string]string{}
		r.mu.Lock()
		for name, l := range r.lanes {
			l.mu.Lock()
			if l.m.held != nil {
				m.Resumed[name] = string(l.m.held.Position)
			}
			l.mu.Unlock()
		}
		r.mu.Unlock()
	}
	if err := r.state.write(ctx, m); err != nil {
		return err
	}
	rows, err := r.state.rows(ctx)
	if err != nil {
		return err
	}
	if err := r.align(ctx, m, rows); err != nil {
		return err
	}
	r.wake()
	if !paused {
		r.resumeGaps(m)
	}
	return nil
}

// align has every partition that is not at its end carried, or none while the relay is paused. A row may say otherwise when
// two writes met: of a pause and a node that found a partition, or of a partition's end and an older cursor that came late.
func (r *Relay) align(ctx context.Context, m marker, rows map[string]lease.Row) error {
	desired := lease.Started
	if m.Paused {
		desired = lease.Stopped
	}
	for id, row := range rows {
		if row.Cursor == cursorEnd || row.Desired == desired {
			continue
		}
		if _, err := r.o.Leases.Put(ctx, lease.Put{ID: id, Desired: desired, URL: row.URL, Spec: row.Spec}); err != nil {
			return err
		}
	}
	return nil
}

// ErrManyPartitions is Seek's for a position, which belongs to one partition, where there are several.
var ErrManyPartitions = errors.New("relay: a position says nothing where there are several partitions")

// Seek begins again from somewhere, with all partitions: what is sent twice has the same Event.ID. Whoever carries a
// partition loses it, and nothing of its cursor counts any more. From.After is for sources with one partition.
func (r *Relay) Seek(ctx context.Context, from From) error {
	m, err := r.state.marker(ctx)
	if err != nil {
		return err
	}
	rows, err := r.state.rows(ctx)
	if err != nil {
		return err
	}
	if from.After != "" && len(rows) > 1 {
		return fmt.Errorf("%w: %s has %d; give a time", ErrManyPartitions, r.o.ID, len(rows))
	}
	m.Start, m.Resumed = from.cursor(), nil
	if _, err := r.o.Leases.Delete(ctx, markerID); err != nil {
		return err
	}
	if err := r.state.write(ctx, m); err != nil {
		return err
	}
	for id := range rows {
		if _, err := r.o.Leases.Delete(ctx, id); err != nil {
			return err
		}
	}
	r.wake()
	return r.discover(ctx)
}

// Status is how a relay is.
type Status struct {
	ID         string            `json:"id"`
	Paused     bool              `json:"paused"`
	Alarm      string            `json:"alarm,omitempty"` // the first partition's, or dead_letters
	Why        string            `json:"why,omitempty"`
	Partitions []PartitionStatus `json:"partitions"`
	Dead       DeadStats         `json:"dead_letters"`
}

// PartitionStatus is how one partition is, whoever carries it.
type PartitionStatus struct {
	Name   string `json:"name"`
	State  string `json:"state"`  // carried, paused, waiting (nobody has it), ended
	Owner  string `json:"owner"`  // the worker that carries it
	Cursor string `json:"cursor"` // as it is kept
	Fence  uint64 `json:"fence"`
	Behind *int64 `json:"behind,omitempty"` // events, if the source can tell

	Here *LaneStatus `json:"here,omitempty"` // what this node knows, if it carries it
}

// LaneStatus is a partition that is being carried by this process.
type LaneStatus struct {
	Partition   string        `json:"-"`
	Fence       uint64        `json:"-"`
	Cursor      string        `json:"cursor"`
	Lag         time.Duration `json:"lag_ns"` // age of the oldest event that was read and is not done
	Window      int           `json:"window"` // events that were read and are not done
	WindowBytes int           `json:"window_bytes"`
	InFlight    int           `json:"in_flight"` // batches
	CaughtUp    bool          `json:"caught_up"` // the last read found nothing new, and all before is done
	Alarm       string        `json:"alarm,omitempty"`
	Why         string        `json:"why,omitempty"`
	Counts
}

// Counts are of one process since it carries the partition.
type Counts struct {
	Taken  uint64 `json:"taken"`
	Failed uint64 `json:"failed"` // attempts
	Buried uint64 `json:"buried"`
}

// Lanes tells of the partitions that this process carries, without asking anybody.
func (r *Relay) Lanes() []LaneStatus {
	r.mu.Lock()
	lanes := make([]*lane, 0, len(r.lanes))
	for _, l := range r.lanes {
		lanes = append(lanes, l)
	}
	r.mu.Unlock()
	list := make([]LaneStatus, 0, len(lanes))
	for _, l := range lanes {
		list = append(list, l.status())
	}
	slices.SortFunc(list, func(a, b LaneStatus) int { return strings.Compare(a.Partition, b.Partition) })
	return list
}

// Status asks the stores how the relay is.
func (r *Relay) Status(ctx context.Context) (Status, error) {
	s := Status{ID: r.o.ID, Partitions: []PartitionStatus{}}
	m, err := r.state.marker(ctx)
	if err != nil {
		return s, err
	}
	s.Paused = m.Paused
	rows, err := r.state.rows(ctx)
	if err != nil {
		return s, err
	}
	here := map[string]*LaneStatus{}
	for _, l := range r.Lanes() {
		here[l.Partition] = &l
		if s.Alarm == "" {
			s.Alarm, s.Why = l.Alarm, l.Why
		}
	}
	measurer, _ := r.o.Source.(Measurer)
	for id, row := range rows {
		p := PartitionStatus{Name: id, State: "waiting", Owner: row.Owner.Worker, Cursor: row.Cursor, Fence: row.Fence, Here: here[id]}
		switch {
		case row.Cursor == cursorEnd:
			p.State = "ended"
		case row.Desired == lease.Stopped:
			p.State = "paused"
		case p.Owner != "":
			p.State = "carried"
		}
		if at := readCursor(row.Cursor).After; measurer != nil && at != "" && p.State != "ended" {
			if n, err := measurer.Behind(ctx, id, at); err == nil {
				p.Behind = &n
			}
		}
		s.Partitions = append(s.Partitions, p)
	}
	slices.SortFunc(s.Partitions, func(a, b PartitionStatus) int { return strings.Compare(a.Name, b.Name) })
	if s.Dead, err = r.o.Dead.Stats(ctx, r.o.ID); err != nil {
		return s, err
	}
	if s.Alarm == "" {
		s.Alarm, s.Why = deadAlarm(s.Dead)
	}
	return s, nil
}
