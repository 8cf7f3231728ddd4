package faultdisk

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/ushergo/usher/engine/memory/journal/disk"
)

// Sector is what a disk writes as a whole, in bytes; even that may be torn.
const Sector = 512

// ErrDead is what every operation answers between a crash and the restart.
var ErrDead = errors.New("faultdisk: the machine is off")

// Kind names an operation.
type Kind string

// The operations. Reads are seen as well, so that they can fail.
const (
	Create   Kind = "create"
	Open     Kind = "open"
	OpenRead Kind = "openread"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	List     Kind = "list"
	SyncDir  Kind = "syncdir"
	Lock     Kind = "lock"
	Mkdir    Kind = "mkdir"
	Read     Kind = "read"
	Write    Kind = "write"
	Sync     Kind = "sync"
	Truncate Kind = "truncate"
)

// Changes reports whether the operation changes the disk.
func (k Kind) Changes() bool {
	switch k {
	case Read, Open, OpenRead, List, Lock:
		return false
	}
	return true
}

// Op is one operation, as a fault function sees it.
type Op struct {
	N    int // how many operations came before
	Kind Kind
	Name string // as opened, or the folder
	Off  int64  // of a read or write
	Len  int    // of a read or write
	Size int64  // of the file, before the operation
}

// Fault is what shall go wrong with an operation. The zero value is nothing.
type Fault struct {
	// Err is answered. A write has then written Short bytes, a sync some sectors.
	Err error
	// Short is how many bytes a failing write writes.
	Short int
	// Crash turns the machine off in the middle of the operation.
	Crash bool
}

// Disk is the disk, and the file system on it. It is safe for concurrent use.
type Disk struct {
	mu       sync.Mutex
	rnd      *rand.Rand
	dirs     map[string]bool
	names    map[string]*inode // as readers see them
	durable  map[string]*inode // as they would be after a power loss, but for pending
	pending  []change
	locks    map[string]*lock
	run      int // grows with each restart; files opened before are dead
	dead     bool
	readOnly bool
	capacity int64 // 0: no bound
	ops      int
	fault    func(Op) Fault
	after    func(Op)
}

// A change of names that SyncDir has not yet made durable.
type change struct {
	kind     Kind
	from, to string
	node     *inode
}

// New returns an empty disk whose luck is drawn from seed.
func New(seed uint64) *Disk {
	return &Disk{
		rnd:     rand.New(rand.NewPCG(seed, 0x5eed)),
		dirs:    map[string]bool{"/": true, ".": true},
		names:   map[string]*inode{},
		durable: map[string]*inode{},
		locks:   map[string]*lock{},
	}
}

// SetFault lets f decide about every operation from now on; nil ends that. f is called
// with the disk locked and must not use it.
func (d *Disk) SetFault(f func(Op) Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// SetAfter lets f see every operation that succeeded, at the moment it did. f is called
// with the disk locked and must not use it.
func (d *Disk) SetAfter(f func(Op)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after = f
}

// SetCapacity bounds the sum of all file sizes, in bytes; 0 is no bound.
func (d *Disk) SetCapacity(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capacity = bytes
}

// SetReadOnly makes all that changes the disk fail with EROFS.
func (d *Disk) SetReadOnly(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readOnly = on
}

// Ops returns how many operations there were.
func (d *Disk) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ops
}

// Dead reports whether a fault has turned the machine off.
func (d *Disk) Dead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead
}

// Used returns the sum of all file sizes in bytes.
func (d *Disk) Used() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used()
}

func (d *Disk) used() int64 {
	var sum int64
	for _, n := range d.names {
		sum += int64(len(n.cache))
	}
	return sum
}

// Kill ends the process: open files and locks are gone, the page cache is kept. The
// machine goes on.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.restart()
}

// PowerLoss turns the machine off and on again. What was not synced is at the mercy of
// the seed.
func (d *Disk) PowerLoss() {
	d.mu.Lock()
	defer d.mu.Unlock()
	skip := 0.5
	if d.rnd.IntN(2) == 0 {
		// A journaling file system loses only the latest changes.
		d.pending = d.pending[:d.rnd.IntN(len(d.pending)+1)]
		skip = 0
	}
	for _, c := range d.pending {
		if d.rnd.Float64() >= skip {
			c.apply(d.durable)
		}
	}
	d.pending = nil
	d.names = maps.Clone(d.durable)
	for _, name := range slices.Sorted(maps.Keys(d.names)) { // sorted: the seed decides alone
		d.names[name].lose(d.rnd)
	}
	d.restart()
}

func (d *Disk) restart() {
	d.dead = false
	d.run++
	clear(d.locks)
}

func (c change) apply(names map[string]*inode) {
	switch c.kind {
	case Create:
		names[c.to] = c.node
	case Rename:
		if names[c.from] == c.node {
			delete(names, c.from)
		}
		names[c.to] = c.node
	case Remove:
		if names[c.from] == c.node {
			delete(names, c.from)
		}
	}
}

// begin asks for a fault. When it returns a nil error the operation shall happen.
func (d *Disk) begin(op Op) (Fault, error) {
	if d.dead {
		return Fault{}, &fs.PathError{Op: string(op.Kind), Path: op.Name, Err: ErrDead}
	}
	op.N = d.ops
	d.ops++
	var f Fault
	if d.fault != nil {
		f = d.fault(op)
	}
	if d.readOnly && op.Kind.Changes() && f.Err == nil {
		f.Err = syscall.EROFS
	}
	if f.Crash {
		d.dead = true
		f.Err = ErrDead
		f.Short = 0
		if op.Len > 0 {
			f.Short = d.rnd.IntN(op.Len + 1)
		}
	}
	if f.Err != nil {
		return f, &fs.PathError{Op: string(op.Kind), Path: op.Name, Err: f.Err}
	}
	return f, nil
}

func (d *Disk) done(op Op) {
	if d.after != nil {
		d.after(op)
	}
}

// rename records a change of names and makes it visible.
func (d *Disk) change(c change) {
	c.apply(d.names)
	d.pending = append(d.pending, c)
}

// MkdirAll implements [disk.FS].
func (d *Disk) MkdirAll(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir = filepath.Clean(dir)
	if d.dirs[dir] {
		return nil
	}
	if _, err := d.begin(Op{Kind: Mkdir, Name: dir}); err != nil {
		return err
	}
	for ; !d.dirs[dir]; dir = filepath.Dir(dir) {
		d.dirs[dir] = true
	}
	return nil
}

// Create implements [disk.FS].
func (d *Disk) Create(name string) (disk.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.begin(Op{Kind: Create, Name: name}); err != nil {
		return nil, err
	}
	if !d.dirs[filepath.Dir(name)] {
		return nil, &fs.PathError{Op: "create", Path: name, Err: os.ErrNotExist}
	}
	if n := d.names[name]; n != nil {
		n.truncate(0)
		return &file{d: d, node: n, name: name, run: d.run}, nil
	}
	n := newInode()
	d.change(change{kind: Create, to: name, node: n})
	return &file{d: d, node: n, name: name, run: d.run}, nil
}

// Open implements [disk.FS].
func (d *Disk) Open(name string) (disk.File, error) { return d.open(Open, name) }

// OpenRead implements [disk.FS].
func (d *Disk) OpenRead(name string) (disk.File, error) { return d.open(OpenRead, name) }

func (d *Disk) open(kind Kind, name string) (disk.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.begin(Op{Kind: kind, Name: name}); err != nil {
		return nil, err
	}
	n := d.names[name]
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
	if d.readOnly && kind == Open {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EROFS}
	}
	return &file{d: d, node: n, name: name, run: d.run}, nil
}

// Rename implements [disk.FS].
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[from]
	op := Op{Kind: Rename, Name: to}
	f, err := d.begin(op)
	if n == nil && err == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: os.ErrNotExist}
	}
	if err != nil && (!f.Crash || n == nil || d.rnd.IntN(2) == 0) {
		return err
	}
	d.change(change{kind: Rename, from: from, to: to, node: n})
	if err == nil {
		d.done(op)
	}
	return err
}

// Remove implements [disk.FS].
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: Remove, Name: name}
	if _, err := d.begin(op); err != nil {
		return err
	}
	n := d.names[name]
	if n == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: os.ErrNotExist}
	}
	d.change(change{kind: Remove, from: name, node: n})
	d.done(op)
	return nil
}

// List implements [disk.FS].
func (d *Disk) List(dir string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.begin(Op{Kind: List, Name: dir}); err != nil {
		return nil, err
	}
	var names []string
	for name := range d.names {
		if filepath.Dir(name) == filepath.Clean(dir) {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// SyncDir implements [disk.FS]. When it fails nothing has become durable.
func (d *Disk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: SyncDir, Name: dir}
	if _, err := d.begin(op); err != nil {
		return err
	}
	for _, c := range d.pending {
		c.apply(d.durable)
	}
	d.pending = nil
	d.done(op)
	return nil
}

type lock struct {
	d    *Disk
	name string
}

// Lock implements [disk.FS].
func (d *Disk) Lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.begin(Op{Kind: Lock, Name: name}); err != nil {
		return nil, err
	}
	if d.readOnly {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EROFS}
	}
	if d.locks[name] != nil {
		return nil, &disk.HeldError{Name: name, PID: os.Getpid()}
	}
	l := &lock{d, name}
	d.locks[name] = l
	return l, nil
}

func (l *lock) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	if l.d.locks[l.name] == l { // else a restart took it
		delete(l.d.locks, l.name)
	}
	return nil
}

// Free implements [disk.FS].
func (d *Disk) Free(string) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.capacity == 0 {
		return 1 << 40, nil
	}
	return uint64(max(0, d.capacity-d.used())), nil
}
