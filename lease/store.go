package lease

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"unicode/utf8"
)

// Store keeps one space: worker rows, resource rows and the floor of fences. Engines implement it; leasetest holds each of
// them to what is said here. Every method is safe for concurrent use, and every change of one row is one atomic step. No
// step looks at two rows, so a store needs conditional writes and nothing else.
//
// An error is ErrUnavailable (nothing was done), ErrUnknown (perhaps it was: ask again, every method may be repeated),
// ErrForeign or ErrBadRequest. "No" is a value, not an error.
//
// No method looks at a clock to decide. A store that has one draws fences and generations as max(last + 1, µs since 1970).
type Store interface {
	// Workers reads all worker rows, as they are after every change answered before the call.
	Workers(ctx context.Context) ([]WorkerRow, error)
	// Join makes a worker's row of a new generation, where there is none or only a dead one. Joined.OK is false while
	// another generation of that name lives. Repeated with the same token it answers the same.
	Join(ctx context.Context, j Join) (Joined, error)
	// Beat writes the row of a living generation, if its beat is smaller than b.Beat. false: the generation is dead, and
	// never lives again.
	Beat(ctx context.Context, b Beat) (bool, error)
	// Mark makes a generation dead, if its row still has that beat or is gone. It and Beat change one row: one of them is
	// first. false: it lives, with another beat.
	Mark(ctx context.Context, m Mark) (bool, error)
	// Leave makes a generation dead by its own wish: all it owned is unowned from this write on.
	Leave(ctx context.Context, o Owner) error
	// Forget removes a dead generation's row. A generation without a row is dead.
	Forget(ctx context.Context, o Owner) error

	// Put makes a resource or changes its desired state, URL and spec; owner, fence and cursor stay. A new one's fence
	// is at least that of every resource deleted before.
	Put(ctx context.Context, p Put) (Row, error)
	// Delete removes a resource; its fence goes into the floor first. false: there was none. Its owner hears of it within
	// Options.Desired. One that is made again before that may have two at work, under two fences: stop it first, and delete
	// it when nobody owns it.
	Delete(ctx context.Context, id string) (bool, error)
	// Get reads rows, as they are after every change answered before the call, in any order. Those that do not exist are
	// left out.
	Get(ctx context.Context, ids []string) ([]Row, error)
	// List reads a page of at most limit rows (1 to MaxList), in the store's order. after is "", or next of the page before;
	// next is "" on the last page.
	List(ctx context.Context, after string, limit int) (rows []Row, next string, err error)
	// Owned reads the started rows of one owner. It may be old: whoever acts on it asks Get before.
	Owned(ctx context.Context, o Owner) ([]Brief, error)
	// Orphans reads started rows that none of living owns, at most limit, and nothing else. It may be old.
	Orphans(ctx context.Context, living []Owner, limit int) ([]Brief, error)

	// Take makes a started row t.To's, with a greater fence, if it is still t.From's with that fence. Repeated after it
	// was done it answers as before. It does not look at worker rows: who calls knows that t.From is dead, or none.
	Take(ctx context.Context, t Take) (Taken, error)
	// Release makes a row nobody's, if it is r.Owner's with that fence, and stops it when r.Stop says so. The fence stays.
	// false: it is not that owner's, now or any more.
	Release(ctx context.Context, r Release) (bool, error)
	// Flush writes cursors, each if its row is that owner's with that fence: a zombie moves none. The answers are in the
	// order of cs; where it fails, some may have been written.
	Flush(ctx context.Context, cs []Cursor) ([]bool, error)

	// Health is nil while commands can be taken; else it says what is wrong and the mend.
	Health() error
}

// Watcher is a Store that tells at once when a resource was made, started, stopped, deleted or released, or a worker left,
// by whatever process. Without it workers hear of it within Options.Desired.
type Watcher interface {
	// Watch calls wake after every such change, and once when calls may have been missed, until ctx ends. It returns after
	// the watch has begun, or with why it could not. wake must not block and may be called by many goroutines.
	Watch(ctx context.Context, wake func()) error
}

var (
	// ErrUnavailable: the store does not answer, and nothing was done.
	ErrUnavailable = errors.New("lease: the store does not answer")
	// ErrUnknown: the answer was lost; what was asked may have been done. Ask again.
	ErrUnknown = errors.New("lease: the store's answer was lost")
	// ErrForeign: the store holds something under our name that this version cannot read. The error that wraps it names
	// it and says what to do.
	ErrForeign = errors.New("lease: the store holds a record of another layout")
	// ErrBadRequest: a name or a size that cannot be. The error that wraps it names the field.
	ErrBadRequest = errors.New("lease: bad request")
)

// Bounds.
const (
	MaxSpec   = 64 << 10 // bytes
	MaxURL    = 2 << 10  // bytes
	MaxCursor = 1 << 10  // bytes
	MaxList   = 1000     // rows
	MaxBatch  = 500      // ids or cursors in one call
)

// Desired says whether anybody should own a resource.
type Desired string

const (
	Started Desired = "started"
	Stopped Desired = "stopped"
)

// Owner is one generation of one worker. The zero value is nobody.
type Owner struct {
	Worker     string // 1 to 128 of A-Z a-z 0-9 . _ : -
	Generation uint64 // never the same twice for one worker; below 2^53
}

func (o Owner) String() string {
	if o == (Owner{}) {
		return "nobody"
	}
	return o.Worker + "#" + strconv.FormatUint(o.Generation, 10)
}

// WorkerRow is what a worker tells the others, once a beat.
type WorkerRow struct {
	Owner
	Beat    uint64 // grows while it lives
	Held    int    // resources, at its last beat
	Cap     int    // that it holds at most
	Leaving bool   // takes nothing any more
	Dead    bool
	Info    string // of its last beat, see Options.Info
}

// Row is a resource.
type Row struct {
	ID      string // 1 to 256 of A-Z a-z 0-9 . _ : / @ = + , -
	Desired Desired
	URL     string // what it is, for those who read the table
	Spec    []byte // its owner's business; not to be changed in place
	Rev     uint64 // grows with each Put that changed something
	Owner   Owner
	Fence   uint64 // of the last take; only grows
	Cursor  string // how far its owner has come
}

// Brief is what is said of a row where many are read.
type Brief struct {
	ID    string
	Owner Owner
	Fence uint64
	Rev   uint64
}

// Brief of a row.
func (r Row) Brief() Brief { return Brief{r.ID, r.Owner, r.Fence, r.Rev} }

// Join is how a worker begins.
type Join struct {
	Worker string
	Token  string // unique for this attempt; repeat it when the answer was lost
	Cap    int
}

// Joined is the answer to Join.
type Joined struct {
	OK    bool
	Owner Owner // the new generation, or the one that lives
}

// Beat says that a generation lives. Its number is the caller's, greater each time.
type Beat struct {
	Owner
	Beat    uint64
	Held    int
	Leaving bool
	Info    string // up to 256 of A-Z a-z 0-9 _ = . , : -
}

// Mark says that a generation's beat stood still for a whole lease.
type Mark struct {
	Owner
	Beat uint64
}

// Put makes or changes a resource.
type Put struct {
	ID       string
	Desired  Desired
	URL      string
	Spec     []byte
	Cursor   string // where a new one begins; ignored when it exists
	IfAbsent bool   // changes nothing when it exists
}

// Take is a change of owner.
type Take struct {
	ID    string
	From  Owner // nobody, or dead
	Fence uint64
	To    Owner
}

// Taken is the answer to Take. Where OK is false, Row is what is there instead; its ID is "" where nothing is.
type Taken struct {
	OK  bool
	Row Row
}

// Release gives a resource back.
type Release struct {
	ID    string
	Owner Owner
	Fence uint64
	Stop  bool // it is finished: nobody should own it
}

// Cursor is how far an owner has come.
type Cursor struct {
	ID     string
	Owner  Owner
	Fence  uint64
	Cursor string
}

var (
	workerName   = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)
	resourceName = regexp.MustCompile(`^[A-Za-z0-9_.:/@=+,-]{1,256}$`)
	beatInfo     = regexp.MustCompile(`^[A-Za-z0-9_=.,:-]{0,256}$`)
	spaceName    = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadRequest}, args...)...)
}

// CheckSpace says what is wrong with a space's name. Engines ask it.
func CheckSpace(space string) error {
	if !spaceName.MatchString(space) {
		return bad("space %q: use 1 to 64 of A-Z a-z 0-9 _ . -", space)
	}
	return nil
}

// CheckID says what is wrong with a resource's id.
func CheckID(id string) error {
	if !resourceName.MatchString(id) {
		return bad("resource id %q: use 1 to 256 of A-Z a-z 0-9 _ . : / @ = + , -", id)
	}
	return nil
}

// CheckIDs says what is wrong with ids.
func CheckIDs(ids []string) error {
	if len(ids) > MaxBatch {
		return bad("ids: at most %d at once, not %d", MaxBatch, len(ids))
	}
	for _, id := range ids {
		if err := CheckID(id); err != nil {
			return err
		}
	}
	return nil
}

func checkWorker(name string) error {
	if !workerName.MatchString(name) {
		return bad("worker %q: use 1 to 128 of A-Z a-z 0-9 _ . : -", name)
	}
	return nil
}

// Check says what is wrong with an owner.
func (o Owner) Check() error {
	if o.Generation == 0 || o.Generation >= 1<<53 {
		return bad("generation %d: 1 to 2^53 - 1", o.Generation)
	}
	return checkWorker(o.Worker)
}

// Check says what is wrong with a join.
func (j Join) Check() error {
	if j.Token == "" || len(j.Token) > 128 {
		return bad("token: 1 to 128 bytes that nobody else uses")
	}
	if j.Cap < 0 {
		return bad("cap %d: 0 or more", j.Cap)
	}
	return checkWorker(j.Worker)
}

// Check says what is wrong with a beat.
func (b Beat) Check() error {
	if b.Beat == 0 || b.Beat >= 1<<53 {
		return bad("beat %d: 1 to 2^53 - 1", b.Beat)
	}
	if b.Held < 0 {
		return bad("held %d: 0 or more", b.Held)
	}
	if !beatInfo.MatchString(b.Info) {
		return bad("info %q: up to 256 of A-Z a-z 0-9 _ = . , : -", b.Info)
	}
	return b.Owner.Check()
}

// Check says what is wrong with a put.
func (p Put) Check() error {
	switch {
	case p.Desired != Started && p.Desired != Stopped:
		return bad("desired %q: started or stopped", p.Desired)
	case len(p.URL) > MaxURL || !utf8.ValidString(p.URL):
		return bad("url: UTF-8 of at most %d bytes, not %d", MaxURL, len(p.URL))
	case len(p.Spec) > MaxSpec:
		return bad("spec: at most %d bytes, not %d", MaxSpec, len(p.Spec))
	}
	return errors.Join(CheckID(p.ID), checkCursor(p.Cursor))
}

func checkCursor(c string) error {
	if len(c) > MaxCursor || !utf8.ValidString(c) {
		return bad("cursor: UTF-8 of at most %d bytes, not %d", MaxCursor, len(c))
	}
	return nil
}

// Check says what is wrong with a take.
func (t Take) Check() error {
	if t.From != (Owner{}) {
		if err := t.From.Check(); err != nil {
			return err
		}
	}
	return errors.Join(CheckID(t.ID), t.To.Check())
}

// Check says what is wrong with a release.
func (r Release) Check() error { return errors.Join(CheckID(r.ID), r.Owner.Check()) }

// CheckCursors says what is wrong with cursors.
func CheckCursors(cs []Cursor) error {
	if len(cs) > MaxBatch {
		return bad("cursors: at most %d at once, not %d", MaxBatch, len(cs))
	}
	for _, c := range cs {
		if err := errors.Join(CheckID(c.ID), c.Owner.Check(), checkCursor(c.Cursor)); err != nil {
			return err
		}
	}
	return nil
}

// CheckList says what is wrong with a page.
func CheckList(after string, limit int) error {
	if after != "" {
		if err := CheckID(after); err != nil {
			return err
		}
	}
	if limit < 1 || limit > MaxList {
		return bad("limit %d: 1 to %d", limit, MaxList)
	}
	return nil
}
