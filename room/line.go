package room

import (
	"math/bits"
	"slices"
)

// Line is the order of those who wait: which positions are alive, and how many of them stand
// before another. Positions only grow, so a bitmap does, with a Fenwick tree (P. Fenwick, 1994)
// over the counts of its blocks: about an eighth of a byte a position, and no work at all for
// those who merely wait. The machine keeps one, and every node keeps its own from the log.
//
// The zero Line is empty. Not safe for concurrent use.
type Line struct {
	base  uint64   // positions 1..base are dead and forgotten; a multiple of blockBits
	words []uint64 // a bit a position, from base+1
	tree  []uint32 // Fenwick tree over blocks, tree[0] unused
	n     int      // living positions
	draws []*draw  // openings with somebody still in line, by position
	pre   *draw    // the coming opening: entered, without a position yet
}

const (
	blockWords = 64
	blockBits  = blockWords * 64
)

// Len is the number of living waiters, those before an opening included.
func (l *Line) Len() int {
	if l.pre != nil {
		return l.n + l.pre.living()
	}
	return l.n
}

// Positioned is the number of living waiters whose position is known.
func (l *Line) Positioned() int { return l.n }

// end is the last position that the bitmap covers.
func (l *Line) end() uint64 { return l.base + uint64(len(l.words))*64 }

func (l *Line) add(pos uint64) {
	if pos == 0 {
		return
	}
	if pos <= l.base { // a failover lost it, and it is taken up again
		base := (pos - 1) / blockBits * blockBits
		l.words = append(make([]uint64, (l.base-base)/64), l.words...)
		l.base = base
		l.rebuild()
	}
	l.skip(pos)
	i := pos - l.base - 1
	for uint64(len(l.words))*64 <= i {
		l.grow()
	}
	w, bit := i/64, uint64(1)<<(i%64)
	if l.words[w]&bit == 0 {
		l.words[w] |= bit
		l.update(int(i/blockBits), 1)
		l.n++
	}
}

// skip lets an empty line begin near pos, so that positions which nobody has cost nothing.
func (l *Line) skip(pos uint64) {
	if l.n == 0 && pos > l.end()+blockBits {
		l.base, l.words, l.tree = (pos-1)/blockBits*blockBits, nil, nil
	}
}

// grow adds one block. A new node of a Fenwick tree is the sum of what it covers.
func (l *Line) grow() {
	l.words = append(l.words, make([]uint64, blockWords)...)
	if len(l.tree) == 0 {
		l.tree = append(l.tree, 0)
	}
	i := len(l.tree)
	var sum uint32
	for j := i - 1; j > i-(i&-i); j -= j & -j {
		sum += l.tree[j]
	}
	l.tree = append(l.tree, sum)
}

func (l *Line) update(block int, by int32) {
	for i := block + 1; i < len(l.tree); i += i & -i {
		l.tree[i] += uint32(by)
	}
}

// remove takes pos out of the line and says whether it stood there.
func (l *Line) remove(pos uint64) bool {
	if pos <= l.base || pos > l.end() {
		return false
	}
	i := pos - l.base - 1
	w, bit := i/64, uint64(1)<<(i%64)
	if l.words[w]&bit == 0 {
		return false
	}
	l.words[w] &^= bit
	l.update(int(i/blockBits), -1)
	l.n--
	return true
}

// Has says whether pos is alive.
func (l *Line) Has(pos uint64) bool {
	if pos <= l.base || pos > l.end() {
		return false
	}
	i := pos - l.base - 1
	return l.words[i/64]&(1<<(i%64)) != 0
}

// Before counts the living positions below pos: pos's place is one more.
func (l *Line) Before(pos uint64) int {
	if pos <= l.base+1 {
		return 0
	}
	if pos > l.end() {
		return l.n
	}
	i := pos - l.base - 1
	n := 0
	for b := int(i / blockBits); b > 0; b -= b & -b {
		n += int(l.tree[b])
	}
	w := i / 64
	for k := w / blockWords * blockWords; k < w; k++ {
		n += bits.OnesCount64(l.words[k])
	}
	return n + bits.OnesCount64(l.words[w]&(1<<(i%64)-1))
}

// At is the position with k living ones before it (At(0) is the head), or 0.
func (l *Line) At(k int) uint64 {
	if k < 0 || k >= l.n {
		return 0
	}
	block, rest := 0, uint32(k)
	for step := 1 << (bits.Len(uint(len(l.tree))) - 1); step > 0; step /= 2 {
		if next := block + step; next < len(l.tree) && l.tree[next] <= rest {
			block, rest = next, rest-l.tree[next]
		}
	}
	for w := block * blockWords; ; w++ {
		word := l.words[w]
		if c := uint32(bits.OnesCount64(word)); rest >= c {
			rest -= c
			continue
		}
		for ; rest > 0; rest-- {
			word &= word - 1
		}
		return l.base + uint64(w)*64 + uint64(bits.TrailingZeros64(word)) + 1
	}
}

// trim forgets dead blocks at the head once they are half of all; amortised it is free.
func (l *Line) trim() {
	for len(l.draws) > 0 && (l.n == 0 || l.At(0) > l.draws[0].last()) {
		l.draws = l.draws[1:]
	}
	blocks := len(l.words) / blockWords
	if blocks < 32 {
		return
	}
	dead := blocks
	if l.n > 0 {
		dead = int((l.At(0) - l.base - 1) / blockBits)
	}
	if dead*2 < blocks {
		return
	}
	dead = min(dead, blocks-1) // the last block stays: positions still arrive in it
	l.words = slices.Clone(l.words[dead*blockWords:])
	l.base += uint64(dead) * blockBits
	l.rebuild()
}

// rebuild makes the tree anew from the bitmap.
func (l *Line) rebuild() {
	l.n = 0
	l.tree = make([]uint32, 1, len(l.words)/blockWords+1)
	for b := 0; b < len(l.words); b += blockWords {
		var n uint32
		for _, w := range l.words[b : b+blockWords] {
			n += uint32(bits.OnesCount64(w))
		}
		l.n += int(n)
		i := len(l.tree)
		for j := i - 1; j > i-(i&-i); j -= j & -j {
			n += l.tree[j]
		}
		l.tree = append(l.tree, n)
	}
}

// apply keeps the line up with one event of the room's log.
func (l *Line) apply(e *Event) {
	switch e.Type {
	case Entered:
		if e.Prequeue {
			if l.pre == nil {
				l.pre = newDraw(e.Seq)
			}
			l.pre.add(e.Key, e.Seq)
			return
		}
		l.add(e.Pos)
	case Admitted:
		l.remove(e.Pos)
		l.trim()
	case Left, Expired, Abandoned:
		if e.WasActive {
			return
		}
		if e.Pos == 0 {
			if l.pre != nil {
				l.pre.kill(e.Key)
			}
			return
		}
		l.remove(e.Pos)
		l.trim()
	case StateChanged:
		if l.pre != nil && e.State.Phase != PhaseBefore && e.State.Phase != PhasePrequeue {
			l.open()
		}
	}
}

// open gives everybody of the prequeue the position that was drawn.
func (l *Line) open() {
	d := l.pre
	l.pre = nil
	d.seal()
	if d.n > 0 {
		l.fill(d.first, d.last())
	}
	for _, keys := range d.dead {
		for _, key := range keys {
			i := d.pos(key) - l.base - 1
			l.words[i/64] &^= 1 << (i % 64)
		}
	}
	l.rebuild()
	d.dead, d.gone = nil, 0
	l.draws = append(l.draws, d)
}

// fill adds all positions from first to last; the tree is for the caller to rebuild.
func (l *Line) fill(first, last uint64) {
	l.skip(first)
	for l.end() < last {
		l.words = append(l.words, make([]uint64, blockWords)...)
	}
	for i := first - l.base - 1; i <= last-l.base-1; {
		if i%64 == 0 && i+64 <= last-l.base {
			l.words[i/64] = ^uint64(0)
			i += 64
			continue
		}
		l.words[i/64] |= 1 << (i % 64)
		i++
	}
}

// drawOf finds the opening that seq or pos (they share their range) belongs to, or nil.
func (l *Line) drawOf(seq uint64) *draw {
	for _, d := range l.draws {
		if seq >= d.first && seq <= d.last() {
			return d
		}
	}
	return nil
}

// seqAt is the seq of the ticket that stands at pos.
func (l *Line) seqAt(pos uint64) uint64 {
	if d := l.drawOf(pos); d != nil {
		return d.seqAt(pos)
	}
	return pos
}

// clone copies l so that the copy can be kept up on its own.
func (l *Line) clone() *Line {
	c := &Line{base: l.base, words: slices.Clone(l.words), tree: slices.Clone(l.tree), n: l.n, draws: slices.Clone(l.draws)}
	if l.pre != nil { // sealed draws never change and are shared
		c.pre = l.pre.clone()
	}
	return c
}

// Sketch returns pairs (pos, place), rising: exact for the first 100 places and then a twentieth
// apart, so that whoever looks up a pos between two pairs is off by at most 5 %. At most about
// 300 pairs for a million.
func (l *Line) Sketch() [][2]uint64 {
	pairs := make([][2]uint64, 0, min(l.n, 300))
	for k := 0; k < l.n; {
		pairs = append(pairs, [2]uint64{l.At(k), uint64(k) + 1})
		if k < 99 {
			k++
			continue
		}
		next := k + max(1, (k+1)/20)
		if k < l.n-1 && next >= l.n {
			next = l.n - 1 // the last of the line is exact too
		}
		k = next
	}
	return pairs
}

// SketchPlace looks pos up in a sketch: the number of pairs' waiters at or before it. ok is
// false for a pos behind the sketch, which was made before pos came.
func SketchPlace(sketch [][2]uint64, pos uint64) (place uint64, ok bool) {
	i, exact := slices.BinarySearchFunc(sketch, pos, func(p [2]uint64, pos uint64) int {
		switch {
		case p[0] < pos:
			return -1
		case p[0] > pos:
			return 1
		}
		return 0
	})
	switch {
	case exact:
		return sketch[i][1], true
	case i == len(sketch):
		return 0, false
	}
	return sketch[i][1], true // the next one behind: at most a twentieth too many
}
