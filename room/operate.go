package room

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// configure puts a new configuration in force. What the file says is applied when it differs
// from what the file said last; what the admin API says, always.
func (m *Machine) configure(cmd *Command) error {
	switch {
	case cmd.Config == nil:
		return fmt.Errorf("%w: no configuration", ErrBadCommand)
	case cmd.Digest != "" && cmd.Digest == m.digest:
		return nil
	case cmd.IfRevision != 0 && cmd.IfRevision != m.revision:
		return ErrRevision
	}
	if err := cmd.Config.Validate(); err != nil {
		return err
	}
	now, was := cmd.Config.Schedule, m.config.Schedule
	reschedule := m.revision == 0 || !now.OpensAt.Equal(was.OpensAt.Time) || !now.ClosesAt.Equal(was.ClosesAt.Time) || now.Prequeue != was.Prequeue
	d := m.stateData()
	if reschedule {
		d.Phase = now.phase(m.at)
		if d.Phase == PhaseBefore && m.line.pre != nil {
			d.Phase = PhasePrequeue // those who are in the draw stay in it
		}
		d.Closed = d.Phase == PhaseClosed
		if err := d.needsSeed(cmd.Seed); err != nil { // before anything changes
			return err
		}
	}
	digest := cmd.Digest
	if digest == "" {
		digest = m.digest
	}
	m.emitLimit(*cmd.Config, m.revision+1, digest, m.instances)
	if reschedule {
		return m.emitState(d, cmd.Seed)
	}
	return nil
}

// phase is the phase that the schedule asks for at a time, µs since 1970.
func (s *Schedule) phase(at int64) Phase {
	switch {
	case !s.ClosesAt.IsZero() && at >= s.ClosesAt.UnixMicro():
		return PhaseClosed
	case s.OpensAt.IsZero() || at >= s.OpensAt.UnixMicro():
		return PhaseOpen
	case at >= s.OpensAt.Add(-time.Duration(s.Prequeue)).UnixMicro():
		return PhasePrequeue
	}
	return PhaseBefore
}

// schedule does what the clock brings: the prequeue, the opening, the closing. Phases only go
// forward; an operator who closes by hand, or opens after closes_at, overrules the schedule.
func (m *Machine) schedule() {
	s := m.config.Schedule
	if s.OpensAt.IsZero() && s.ClosesAt.IsZero() {
		return
	}
	want := s.phase(m.at)
	switch {
	case want == m.phase, want == PhaseClosed && m.closed:
		return
	case m.phase == PhaseBefore,
		m.phase == PhasePrequeue && want != PhaseBefore,
		m.phase == PhaseOpen && want == PhaseClosed:
		d := m.stateData()
		d.Phase, d.Closed = want, m.closed || want == PhaseClosed
		if m.emitState(d, nil) != nil {
			panic("room: a schedule without a seed") // configure asked for one
		}
	}
}

// setState does what the operator says. Opening ends a pause or a closure, and leaves a
// scheduled opening to its time. Closing by hand ends a prequeue: the draw is held and
// published at once.
func (m *Machine) setState(cmd *Command) error {
	d := m.stateData()
	d.State, d.Message = cmd.State, cmd.Message
	switch cmd.State {
	case StatePaused:
	case StateOpen:
		if m.phase == PhaseClosed {
			d.Phase, d.Closed = m.config.Schedule.phase(m.at), false
			if d.Phase == PhaseClosed { // the operator knows better than the schedule
				d.Phase, d.Closed = PhaseOpen, true
			}
		}
	case StateClosed:
		d.Phase, d.Closed = PhaseClosed, true
	default:
		return fmt.Errorf("%w: state %q; use open, paused or closed", ErrBadCommand, cmd.State)
	}
	if len(cmd.Message) > 1000 {
		return fmt.Errorf("%w: message of %d bytes; use up to 1000", ErrBadCommand, len(cmd.Message))
	}
	if d.State == m.state && d.Phase == m.phase && d.Message == m.message {
		return nil
	}
	return m.emitState(d, cmd.Seed)
}

func (m *Machine) stateData() StateData {
	return StateData{State: m.state, Phase: m.phase, Message: m.message, Closed: m.closed, Opening: m.opening, Seed: m.seed}
}

// coming says whether an opening is ahead.
func (d *StateData) coming() bool { return d.Phase == PhaseBefore || d.Phase == PhasePrequeue }

func (d *StateData) needsSeed(seed []byte) error {
	if d.coming() && len(d.Seed) == 0 && len(seed) != 32 {
		return fmt.Errorf("%w: a scheduled opening needs a seed of 32 bytes", ErrBadCommand)
	}
	return nil
}

func (m *Machine) emitState(d StateData, seed []byte) error {
	if err := d.needsSeed(seed); err != nil {
		return err
	}
	switch {
	case d.coming() && len(d.Seed) == 0:
		h := sha256.Sum256(seed)
		d.Seed, d.Opening = seed, Opening{SeedHash: hex.EncodeToString(h[:])}
	case !d.coming() && len(d.Seed) != 0: // the opening: publish
		d.Opening.Seed = hex.EncodeToString(d.Seed)
		if m.line.pre != nil {
			d.Opening.FirstPos, d.Opening.Count = m.line.pre.first, m.line.pre.n
		}
		d.Opening.Root = m.tree.root()
		d.Seed = nil
	}
	m.emit(Event{Type: StateChanged, State: &d})
	return nil
}

func (m *Machine) emitLimit(c Config, revision uint64, digest string, instances int64) {
	m.emit(Event{Type: LimitChanged, Limit: &LimitData{Config: c, Revision: revision, Digest: digest, Instances: instances, Limit: c.Limit(instances)}})
}
