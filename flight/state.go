package flight

// state is where a flight stands. A flight is in exactly one list at a time, which list is what state says.
type state uint8

const (
	queued  state = iota // behind the real end of an earlier generation of its key (machine.queued)
	pending              // for the budget (its class's queue)
	running              // machine.running, or machine.late once it is past its deadline or has delivered
	ended                // in no list
)

// flight is one load of one key. The machine's part comes first; what the shell keeps with it is named in shell.
type flight[K comparable, V any] struct {
	key        K
	prev, next *flight[K, V] // in its list
	after      *flight[K, V] // the next generation, queued behind this one
	class      *class[K, V]  // nil without a budget
	gen, epoch uint64
	waiters    int32 // callers that wait now, the leader included
	stamp      uint32
	state      state

	marks
	args string

	shell[K, V]
}

// marks are what a flight can be beside its state.
type marks struct {
	solo       bool // not in the machine's map: its key is not shareable
	shared     bool // somebody else joined it
	settled    bool // its callers have been told
	delivered  bool // ... before its end, with a value that later callers may take
	abandoned  bool // its last waiter left and its context was cancelled
	forgotten  bool // Forget was called since it started
	timedOut   bool
	late       bool // in machine.late
	orphan     bool // runs and nobody waits
	superseded bool // forgotten or of an old epoch, as of when it settled
	filling    bool
}

// blank makes f as new, for another key. Only what may have been set is written: each pointer written costs.
func (f *flight[K, V]) blank() {
	var zero V
	f.epoch, f.stamp, f.waiters, f.began = 0, 0, 0, 0
	f.marks, f.state, f.val, f.alone = marks{}, queued, zero, false
	if f.err != nil {
		f.err = nil
	}
	if f.done != nil {
		f.done = nil
	}
	if f.args != "" {
		f.args = ""
	}
	if f.class != nil {
		f.class = nil
	}
}
