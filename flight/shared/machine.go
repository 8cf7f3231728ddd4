package shared

import (
	"hash/fnv"
	"time"
)

// The machine is the state of one space and what each command does to it. It has no clock: the time of the decision is
// given, in microseconds of Unix time. It is what the memory engine runs, and what other engines are compared with.

// Shards is how many parts a space's keys are spread over; each has its own fences.
const Shards = 16

// ShardOf is the part that a key belongs to. It is part of the layout.
func ShardOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % Shards)
}

// Space is a machine. The zero value is an empty space.
type Space struct {
	shards [Shards]shard
}

type shard struct {
	fence uint64 // the last one drawn
	all   uint64 // drawn by the last ForgetAll
	recs  map[string]*record
}

type record struct {
	lead     uint64 // 0: nobody leads
	token    string
	until    int64 // of the lease
	followed bool  // somebody waits for the end

	forgot uint64 // drawn by the last Forget

	result   Result
	of       uint64 // the lead that brought result; 0: none
	at       int64  // of its end
	keep     int64
	failures int

	hold       int64 // the key is left alone until then
	holdOf     uint64
	holdStatus Status

	expires int64
}

// Lingering is how long a record is kept after it has no more use, in microseconds: long enough for a failing key's
// count.
const Lingering = int64(60 * time.Second / time.Microsecond)

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

func at(now int64) time.Time { return time.UnixMicro(now).UTC() }

func left(until, now int64) time.Duration { return time.Duration(until-now) * time.Microsecond }

// draw makes a fence: it grows also when the store has lost its memory, as long as its clock goes on.
func (s *shard) draw(now int64) uint64 {
	s.fence = max(s.fence+1, uint64(now))
	return s.fence
}

func (s *shard) rec(key string, now int64) *record {
	r := s.recs[key]
	if r != nil && now >= r.expires {
		delete(s.recs, key)
		return nil
	}
	return r
}

// forgotten is the fence of the last Forget or ForgetAll that concerns r.
func (s *shard) forgotten(r *record) uint64 { return max(r.forgot, s.all) }

func (r *record) extend(now int64) {
	r.expires = max(now, r.until, r.keep, r.hold) + Lingering
}

// Begin decides what the asker has to do.
func (m *Space) Begin(b Begin, now int64) State {
	s := &m.shards[ShardOf(b.Key)]
	r := s.rec(b.Key, now)
	if r == nil {
		r = &record{}
		if s.recs == nil {
			s.recs = make(map[string]*record)
		}
		s.recs[b.Key] = r
	}
	gone := s.forgotten(r)
	st := State{At: at(now), Failures: r.failures}
	leading := r.lead != 0 && now < r.until
	switch {
	case leading && r.token == b.Token: // asked again
		st.Kind, st.Fence, st.Left = Lead, r.lead, left(r.until, now)
		return st
	case b.After > 0 && r.of >= b.After && now < r.keep:
		st.Kind, st.Fence, st.Result = Done, r.of, r.result
		return st
	case b.After == 0 && b.MaxAge > 0 && r.result.Status == Loaded && r.of > gone && now < r.keep && now-r.at <= micros(b.MaxAge):
		st.Kind, st.Fence, st.Result = Done, r.of, r.result
		return st
	case now < r.hold && r.holdOf > gone && r.holdStatus == Unsharable:
		st.Kind, st.Left = Alone, left(r.hold, now)
		return st
	case now < r.hold && r.holdOf > gone:
		st.Kind, st.Fence, st.Left = Held, r.holdOf, left(r.hold, now)
		st.Result = Result{Status: Failed, Class: r.result.Class, Message: r.result.Message}
		return st
	case leading:
		r.followed = true
		st.Kind, st.Left, st.After = Follow, left(r.until, now), b.After
		if b.After == 0 {
			// A lead that began before the last Forget is not for this asker: she waits for one that comes after it.
			st.After = max(r.lead, gone+1)
		}
		return st
	}
	r.lead, r.token, r.until = s.draw(now), b.Token, now+micros(b.Lease)
	r.extend(now)
	st.Kind, st.Fence, st.Left = Lead, r.lead, b.Lease
	return st
}

// Renew extends a lead, also one whose lease has run out if nobody has taken over.
func (m *Space) Renew(x Renew, now int64) Renewed {
	s := &m.shards[ShardOf(x.Key)]
	r := s.rec(x.Key, now)
	if r == nil || r.lead != x.Fence || x.Fence == 0 {
		return Renewed{At: at(now)}
	}
	r.until = now + micros(x.Lease)
	r.extend(now)
	return Renewed{At: at(now), Held: true}
}

// Finish publishes, if the fence still leads. wake: somebody waits for it.
func (m *Space) Finish(f Finish, now int64) (done Finished, wake bool) {
	s := &m.shards[ShardOf(f.Key)]
	r := s.rec(f.Key, now)
	done.At = at(now)
	switch {
	case r == nil || f.Fence == 0:
		done.Lost = true
		return done, false
	case r.lead != f.Fence:
		// Asked again after a lost answer, or too late.
		done.Lost = r.of != f.Fence
		done.Superseded = !done.Lost && r.result.Superseded
		return done, false
	}
	done.Superseded = f.Fence <= s.forgotten(r)
	if f.Result.Status != Released {
		r.result, r.of, r.at, r.keep = f.Result, f.Fence, now, now+micros(f.Keep)
		r.result.Superseded = done.Superseded
		if !done.Superseded {
			r.learn(f, now)
		}
	}
	wake = r.followed
	r.lead, r.token, r.until, r.followed = 0, "", 0, false
	r.extend(now)
	return done, wake
}

// learn is what a result that nothing has overtaken means for those who ask later.
func (r *record) learn(f Finish, now int64) {
	r.hold, r.holdOf, r.holdStatus = 0, 0, 0
	if f.Result.Status == Failed && f.Hold > 0 {
		r.failures++
	} else if f.Result.Status != Failed {
		r.failures = 0
	}
	if f.Hold > 0 && f.Result.Status != Loaded {
		r.hold, r.holdOf, r.holdStatus = now+micros(f.Hold), f.Fence, f.Result.Status
	}
}

// Forget draws a fence that every lead so far is below.
func (m *Space) Forget(key string, now int64) {
	s := &m.shards[ShardOf(key)]
	if r := s.rec(key, now); r != nil {
		r.forgot = s.draw(now)
		r.failures, r.hold, r.holdOf, r.holdStatus = 0, 0, 0, 0
		r.extend(now)
	}
}

// ForgetAll draws one for each shard.
func (m *Space) ForgetAll(now int64) {
	for i := range m.shards {
		s := &m.shards[i]
		s.all = s.draw(now)
	}
}

// Sweep drops up to n records that have had their time.
func (m *Space) Sweep(now int64, n int) {
	for i := range m.shards {
		for k, r := range m.shards[i].recs {
			if n--; n < 0 {
				return
			}
			if now >= r.expires {
				delete(m.shards[i].recs, k)
			}
		}
	}
}

// Len is how many records there are.
func (m *Space) Len() (n int) {
	for i := range m.shards {
		n += len(m.shards[i].recs)
	}
	return n
}
