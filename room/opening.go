package room

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"slices"
)

// A scheduled opening shuffles those who came before it, and proves that it did so fairly.
//
// Each ticket of the prequeue gets an order key, HMAC-SHA256(seed, ticket id) cut to 8 bytes, at
// entry. At the opening the tickets, sorted by order key, take the positions of the prequeue's
// seqs. SHA-256(seed) is published before the first ticket, so the operator cannot choose a seed
// to suit somebody; the seed, and the Merkle root of the ids in the order of their seqs
// (RFC 6962 §2.1), are published at the opening, so anyone who has the list of ids can repeat
// the draw. It does not prove that the operator added no tickets of her own.

// Opening is what is published of a draw.
type Opening struct {
	SeedHash string `json:"seed_hash,omitempty"` // hex, from the moment the seed exists
	FirstPos uint64 `json:"first_pos,omitempty"` // from the opening on, as are all below
	Count    uint64 `json:"count,omitempty"`
	Seed     string `json:"seed,omitempty"` // hex
	Root     string `json:"root,omitempty"` // hex
}

// OrderKey is the order key of a ticket under seed.
func OrderKey(seed []byte, id ID) uint64 {
	mac := hmac.New(sha256.New, seed)
	mac.Write(id[:])
	var sum [sha256.Size]byte
	return max(1, binary.BigEndian.Uint64(mac.Sum(sum[:0]))) // 0 stands for "none" in events
}

// Draw repeats an opening: given its seed and the ids by seq, it returns the published values,
// and the ids in the order in which they stand from firstPos on.
func Draw(seed []byte, firstPos uint64, ids []ID) (Opening, []ID) {
	var m merkle
	type entry struct {
		key uint64
		i   int
	}
	entries := make([]entry, len(ids))
	for i, id := range ids {
		m.add(id)
		entries[i] = entry{OrderKey(seed, id), i}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { // equal keys: by seq
		if a.key < b.key {
			return -1
		}
		return bits.Len64(a.key - b.key)
	})
	order := make([]ID, len(ids))
	for i, e := range entries {
		order[i] = ids[e.i]
	}
	h := sha256.Sum256(seed)
	return Opening{
		SeedHash: hex.EncodeToString(h[:]), Seed: hex.EncodeToString(seed),
		FirstPos: firstPos, Count: uint64(len(ids)), Root: m.root(),
	}, order
}

// merkle computes the root of a growing list, keeping one hash for each full subtree.
type merkle struct {
	n     uint64
	peaks [][32]byte // of the full subtrees of n's binary digits, largest first
}

func (m *merkle) add(id ID) {
	h := sha256.Sum256(append([]byte{0}, id[:]...))
	for n := m.n; n&1 == 1; n >>= 1 {
		h = merkleNode(m.peaks[len(m.peaks)-1], h)
		m.peaks = m.peaks[:len(m.peaks)-1]
	}
	m.peaks = append(m.peaks, h)
	m.n++
}

func merkleNode(left, right [32]byte) [32]byte {
	var b [65]byte
	b[0] = 1
	copy(b[1:], left[:])
	copy(b[33:], right[:])
	return sha256.Sum256(b[:])
}

func (m *merkle) root() string {
	h := sha256.Sum256(nil)
	for i := len(m.peaks) - 1; i >= 0; i-- {
		if i == len(m.peaks)-1 {
			h = m.peaks[i]
		} else {
			h = merkleNode(m.peaks[i], h)
		}
	}
	return hex.EncodeToString(h[:])
}

const drawBuckets = 4096 // by the top bits of the key, which are as good as random

// draw keeps the tickets of one opening sorted by order key, so that opening is a flag and
// no sort of a million. Inserting costs one short memmove in a bucket.
type draw struct {
	first   uint64 // seq of the first ticket; its range of positions is the same
	n       uint64
	buckets [][]drawEntry
	offset  []uint64   // once sealed: entries before each bucket
	dead    [][]uint64 // keys of those who left before the opening, by bucket: together in memory
	gone    int        // how many they are
	seed    []byte     // once opened; the machine's alone
}

type drawEntry struct{ key, seq uint64 }

func newDraw(first uint64) *draw {
	return &draw{first: first, buckets: make([][]drawEntry, drawBuckets), dead: make([][]uint64, drawBuckets)}
}

func (d *draw) last() uint64 { return d.first + d.n - 1 }
func (d *draw) living() int  { return int(d.n) - d.gone }

func (d *draw) add(key, seq uint64) {
	b := &d.buckets[key>>52]
	i := d.find(*b, key)
	for i < len(*b) && (*b)[i].key == key { // equal keys: by seq
		i++
	}
	*b = slices.Insert(*b, i, drawEntry{key, seq})
	d.n++
}

func (d *draw) find(b []drawEntry, key uint64) int {
	i, _ := slices.BinarySearchFunc(b, key, func(e drawEntry, key uint64) int {
		switch {
		case e.key < key:
			return -1
		case e.key > key:
			return 1
		}
		return 0
	})
	return i
}

// kill marks a ticket that left before the opening. Two tickets of one key would need 2^32
// tickets to be likely; the machine gives no key twice in one prequeue.
func (d *draw) kill(key uint64) {
	b := &d.dead[key>>52]
	*b = append(*b, key)
	d.gone++
}

func (d *draw) has(key uint64) bool {
	b := d.buckets[key>>52]
	i := d.find(b, key)
	return i < len(b) && b[i].key == key
}

func (d *draw) seal() {
	d.offset = make([]uint64, drawBuckets)
	n := uint64(0)
	for i, b := range d.buckets {
		d.offset[i] = n
		n += uint64(len(b))
	}
}

// pos is the position of the ticket with that key, once sealed.
func (d *draw) pos(key uint64) uint64 {
	b := key >> 52
	return d.first + d.offset[b] + uint64(d.find(d.buckets[b], key))
}

func (d *draw) seqAt(pos uint64) uint64 {
	k := pos - d.first
	b, ok := slices.BinarySearch(d.offset, k)
	if ok { // empty buckets share their offset with the next one that is not
		for len(d.buckets[b]) == 0 {
			b++
		}
	} else {
		b--
	}
	return d.buckets[b][k-d.offset[b]].seq
}

func (d *draw) clone() *draw {
	c := &draw{first: d.first, n: d.n, buckets: make([][]drawEntry, drawBuckets), dead: make([][]uint64, drawBuckets), gone: d.gone}
	for i, b := range d.buckets {
		c.buckets[i], c.dead[i] = slices.Clone(b), slices.Clone(d.dead[i])
	}
	return c
}
