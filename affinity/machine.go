package affinity

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"
)

// The machine is the directory of one space and what each command does to it. It has no clock: the time of the decision
// is given, in microseconds of Unix time. It is what the memory engine runs, and what other engines are compared with.
// Commands must have passed their Check.

// Shards is how many parts a space's keys are spread over; each draws generations of its own.
const Shards = 16

// ShardOf is the part that a key belongs to. It is part of the layout.
func ShardOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % Shards)
}

// Space is a machine. The zero value is an empty space.
type Space struct {
	shards    [Shards]shard
	instances map[string]*instance
}

type shard struct {
	gen  uint64 // the last one drawn
	rows map[string]*record
}

// record is a row, or for Lingering what is remembered of one that was cleared.
type record struct {
	state   State
	owner   Identity
	addr    string
	session string
	gen     uint64
	token   string
	until   int64
}

type instance struct {
	epoch         uint64
	addr          string
	sessions, max int
	draining      bool
	asked         int64 // to drain: 0 no, 1 yes, more is how long its sessions have, in microseconds
	until         int64
}

// Lingering is how long a row is remembered after its end, in microseconds: a repeated claim or clear is known so long.
const Lingering = int64(60 * time.Second / time.Microsecond)

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

func at(now int64) time.Time { return time.UnixMicro(now).UTC() }

func (s *Space) rec(key string, now int64) *record {
	rows := s.shards[ShardOf(key)].rows
	r := rows[key]
	if r != nil && now >= r.until+Lingering {
		delete(rows, key)
		return nil
	}
	return r
}

func (r *record) lives(now int64) bool { return r != nil && r.state != None && now < r.until }

func (r *record) row(now int64) Row {
	if !r.lives(now) {
		return Row{At: at(now)}
	}
	return Row{
		State: r.state, Owner: r.owner, Addr: r.addr, Session: r.session, Generation: r.gen,
		Left: time.Duration(r.until-now) * time.Microsecond, At: at(now),
	}
}

// Claim grants a key that nobody has, or that an earlier start of the same instance had.
func (s *Space) Claim(c Claim, now int64) Claimed {
	r := s.rec(c.Key, now)
	switch {
	case r.lives(now) && r.token == c.Token && r.owner == c.Owner: // asked again
		return Claimed{Yours, r.row(now)}
	case r.lives(now) && !(r.owner.Instance == c.Owner.Instance && r.owner.Epoch < c.Owner.Epoch):
		return Claimed{Theirs, r.row(now)}
	case r != nil && !r.lives(now) && r.token == c.Token && r.owner == c.Owner:
		return Claimed{Spent, Row{At: at(now)}}
	}
	sh := &s.shards[ShardOf(c.Key)]
	sh.gen = max(sh.gen+1, uint64(now))
	if sh.rows == nil {
		sh.rows = make(map[string]*record)
	}
	r = &record{state: Building, owner: c.Owner, addr: c.Addr, gen: sh.gen, token: c.Token, until: now + micros(c.Build)}
	sh.rows[c.Key] = r
	return Claimed{Yours, r.row(now)}
}

// Refresh confirms the rows that are still this owner's.
func (s *Space) Refresh(f Refresh, now int64) Refreshed {
	out := Refreshed{At: at(now), Held: make([]bool, len(f.Items))}
	for i, it := range f.Items {
		r := s.rec(it.Key, now)
		if !r.lives(now) || r.owner != f.Owner || r.gen != it.Generation {
			continue
		}
		out.Held[i] = true
		if it.Ready {
			r.state, r.session = Ready, it.Session
		}
		if r.state == Ready {
			r.until = now + micros(f.TTL)
		}
	}
	return out
}

// Clear ends a row; what is left of it knows a repeated clear and a late claim.
func (s *Space) Clear(c Clear, now int64) Cleared {
	r := s.rec(c.Key, now)
	out := Cleared{At: at(now)}
	if r == nil || r.owner != c.Owner || r.gen != c.Generation {
		return out
	}
	out.Cleared = r.state == None || r.lives(now)
	if r.lives(now) {
		r.state, r.until = None, now
	}
	return out
}

// Get reads a row.
func (s *Space) Get(key string, now int64) Row { return s.rec(key, now).row(now) }

// Announce notes a living instance. What somebody asked of it (Drain) lasts until its next start.
func (s *Space) Announce(a Announce, now int64) Announced {
	in := s.instances[a.Owner.Instance]
	if in != nil && now >= in.until {
		delete(s.instances, a.Owner.Instance)
		in = nil
	}
	out := Announced{At: at(now)}
	switch {
	case in != nil && in.epoch > a.Owner.Epoch:
		out.Superseded = true
		return out
	case a.TTL <= 0:
		delete(s.instances, a.Owner.Instance)
		return out
	case in == nil || in.epoch < a.Owner.Epoch:
		in = &instance{epoch: a.Owner.Epoch}
		if s.instances == nil {
			s.instances = make(map[string]*instance)
		}
		s.instances[a.Owner.Instance] = in
	}
	in.addr, in.sessions, in.max, in.draining, in.until = a.Addr, a.Sessions, a.Max, a.Draining, now+micros(a.TTL)
	out.Draining = in.asked > 0
	if in.asked > 1 {
		out.DrainFor = time.Duration(in.asked) * time.Microsecond
	}
	return out
}

// Instances lists those that live.
func (s *Space) Instances(now int64) []Instance {
	var list []Instance
	for id, in := range s.instances {
		if now < in.until {
			list = append(list, Instance{
				Owner: Identity{id, in.epoch}, Addr: in.addr, Sessions: in.sessions, Max: in.max,
				Draining: in.draining || in.asked > 0, Left: time.Duration(in.until-now) * time.Microsecond,
			})
		}
	}
	slices.SortFunc(list, func(a, b Instance) int { return strings.Compare(a.Owner.Instance, b.Owner.Instance) })
	return list
}

// Drain notes what is asked of an instance.
func (s *Space) Drain(d Drain, now int64) bool {
	in := s.instances[d.Instance]
	if in == nil || now >= in.until {
		return false
	}
	switch {
	case !d.On:
		in.asked = 0
	case d.For == 0:
		in.asked = 1
	default:
		in.asked = micros(d.For)
	}
	return true
}

// Sweep forgets up to n records that have had their time.
func (s *Space) Sweep(now int64, n int) {
	for id, in := range s.instances {
		if now >= in.until {
			delete(s.instances, id)
		}
	}
	for i := range s.shards {
		for key, r := range s.shards[i].rows {
			if n--; n < 0 {
				return
			}
			if now >= r.until+Lingering {
				delete(s.shards[i].rows, key)
			}
		}
	}
}

// Len is how many rows there are, with those that are only remembered.
func (s *Space) Len() (n int) {
	for i := range s.shards {
		n += len(s.shards[i].rows)
	}
	return n
}

// Forget is what a store that lost its memory and kept its clock is: for tests and models.
func (s *Space) Forget() { *s = Space{} }
