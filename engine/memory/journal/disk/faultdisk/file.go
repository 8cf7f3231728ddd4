package faultdisk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
)

type inode struct {
	cache   []byte // what readers see
	platter []byte // what a power loss leaves
	dirty   map[int]bool
}

func newInode() *inode { return &inode{dirty: map[int]bool{}} }

func (n *inode) write(p []byte, off int64) {
	if len(p) == 0 {
		return
	}
	end := int(off) + len(p)
	if end > len(n.cache) {
		n.cache = append(n.cache, make([]byte, end-len(n.cache))...)
	}
	copy(n.cache[off:], p)
	for s := int(off) / Sector; s*Sector < end; s++ {
		n.dirty[s] = true
	}
}

func (n *inode) truncate(size int64) {
	if int(size) > len(n.cache) {
		n.cache = append(n.cache, make([]byte, int(size)-len(n.cache))...)
		return
	}
	// What is cut reads as zero when the file grows again, on the platter too.
	n.cache = slices.Clone(n.cache[:size])
	if size > 0 {
		n.dirty[int(size-1)/Sector] = true
	}
	for s := range n.dirty {
		if s*Sector >= int(size) {
			delete(n.dirty, s)
		}
	}
}

// carry writes sector s of the cache to p, which holds the platter's bytes.
func (n *inode) carry(p []byte, s int) {
	from, to := s*Sector, min((s+1)*Sector, len(n.cache), len(p))
	if from < to {
		copy(p[from:to], n.cache[from:to])
	}
}

// sized returns the platter's bytes in a file of size bytes.
func (n *inode) sized(size int) []byte {
	p := make([]byte, size)
	copy(p, n.platter)
	return p
}

func (n *inode) sync() {
	p := n.sized(len(n.cache))
	for s := range n.dirty {
		n.carry(p, s)
	}
	n.platter = p
	clear(n.dirty)
}

// failSync writes some dirty sectors and forgets the others. The size is metadata, which
// stays dirty.
func (n *inode) failSync(rnd *rand.Rand) {
	p := n.sized(max(len(n.platter), rnd.IntN(len(n.cache)+1)))
	for _, s := range slices.Sorted(maps.Keys(n.dirty)) {
		if rnd.IntN(2) == 0 {
			n.carry(p, s)
		}
	}
	n.platter = p
	clear(n.dirty)
}

// lose is the power loss.
func (n *inode) lose(rnd *rand.Rand) {
	size := len(n.platter)
	switch rnd.IntN(3) {
	case 0:
		size = len(n.cache)
	case 1:
		lo, hi := min(len(n.platter), len(n.cache)), max(len(n.platter), len(n.cache))
		size = lo + rnd.IntN(hi-lo+1)
	}
	p := n.sized(size)
	for _, s := range slices.Sorted(maps.Keys(n.dirty)) {
		from, to := s*Sector, min((s+1)*Sector, size)
		if from >= to {
			continue
		}
		switch rnd.IntN(4) {
		case 0: // old
		case 1:
			n.carry(p, s)
		case 2: // torn
			old := slices.Clone(p[from:to])
			n.carry(p, s)
			cut := rnd.IntN(to - from + 1)
			copy(p[from+cut:to], old[cut:])
		case 3:
			// The old bytes of a sector survive; behind them is whatever was on the disk.
			for i := max(from, len(n.platter)); i < to; i++ {
				p[i] = byte(rnd.Uint32())
			}
		}
	}
	n.platter = p
	n.cache = slices.Clone(p)
	clear(n.dirty)
}

type file struct {
	d      *Disk
	node   *inode
	name   string
	run    int
	closed bool
}

func (f *file) begin(kind Kind, off int64, length int) (Op, Fault, error) {
	op := Op{Kind: kind, Name: f.name, Off: off, Len: length, Size: int64(len(f.node.cache))}
	if f.closed {
		return op, Fault{}, &fs.PathError{Op: string(kind), Path: f.name, Err: os.ErrClosed}
	}
	if f.run != f.d.run {
		return op, Fault{}, &fs.PathError{Op: string(kind), Path: f.name, Err: ErrDead}
	}
	fault, err := f.d.begin(op)
	return op, fault, err
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if _, _, err := f.begin(Read, off, len(p)); err != nil {
		return 0, err
	}
	if off >= int64(len(f.node.cache)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.cache[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	op, fault, err := f.begin(Write, off, len(p))
	if err != nil {
		short := min(fault.Short, len(p))
		f.node.write(p[:short], off)
		return short, err
	}
	if f.d.capacity > 0 {
		if grow := off + int64(len(p)) - op.Size; grow > 0 {
			if over := f.d.used() + grow - f.d.capacity; over > 0 {
				fits := int(max(0, int64(len(p))-over))
				f.node.write(p[:fits], off)
				return fits, &fs.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
			}
		}
	}
	f.node.write(p, off)
	f.d.done(op)
	return len(p), nil
}

func (f *file) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	op, fault, err := f.begin(Sync, 0, 0)
	if err != nil {
		// A crash leaves the sectors dirty: the power loss decides about them. A refusal
		// because the machine is off already decides nothing.
		if !fault.Crash && !errors.Is(err, ErrDead) && !errors.Is(err, os.ErrClosed) {
			f.node.failSync(f.d.rnd)
		}
		return err
	}
	f.node.sync()
	f.d.done(op)
	return nil
}

func (f *file) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if size < 0 {
		return fmt.Errorf("faultdisk: size %d", size)
	}
	op, fault, err := f.begin(Truncate, size, 0)
	if err != nil && !fault.Crash {
		return err
	}
	f.node.truncate(size)
	if err == nil {
		f.d.done(op)
	}
	return err
}

func (f *file) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.run != f.d.run || f.d.dead {
		return 0, &fs.PathError{Op: "stat", Path: f.name, Err: ErrDead}
	}
	return int64(len(f.node.cache)), nil
}

func (f *file) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.closed = true
	return nil
}
