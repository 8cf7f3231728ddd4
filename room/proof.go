package room

import "sync"

// proofs remember for a moment what visitors have presented with their tickets, so that the command made for them can bring
// it: an engine takes up again by it what a failover has lost. See Command.Issued.
type proofs struct {
	shards [64]struct {
		mu sync.Mutex
		m  map[ID]proof
	}
}

type proof struct {
	issued   int64 // µs since 1970
	admitted bool
}

// maxProofs bounds a shard. When it is full a proof makes place for the next: at worst its visitor presents it once more.
const maxProofs = 1024

func (p *proofs) note(id ID, n proof) {
	s := &p.shards[id[0]%64]
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.m[id]; ok && old.issued == n.issued && (old.admitted || !n.admitted) {
		return
	}
	if s.m == nil {
		s.m = map[ID]proof{}
	}
	if len(s.m) >= maxProofs {
		for id := range s.m {
			delete(s.m, id)
			break
		}
	}
	s.m[id] = n
}

func (p *proofs) of(id ID) proof {
	s := &p.shards[id[0]%64]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[id]
}

// Presented notes that a validly signed ticket was presented, when it was signed (µs since 1970), and whether a validly
// signed admission of it came along. Whatever is asked for that ticket next brings it to the store. It need not be called
// for tickets older than ten minutes.
func (r *Room) Presented(ref Ref, issued int64, admitted bool) {
	r.rooms.proofs.note(ref.ID, proof{issued, admitted})
}
