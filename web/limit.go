package web

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"
)

// limiter counts new tickets by client address: token buckets in bounded memory.
type limiter struct {
	burst, rate float64 // burst < 0: no limit
	now         func() time.Time
	shards      [16]limitShard
}

type limitShard struct {
	mu      sync.Mutex
	buckets map[addrKey]bucket
}

// addrKey is an IPv4 address or an IPv6 /64: what one household or school has.
type addrKey struct {
	prefix uint64
	v4     bool
}

type bucket struct {
	tokens float64
	at     int64 // ns; tokens are as of then
}

// maxBuckets bounds a shard. A bucket that is pushed out starts full again, which is the visitor's gain.
const maxBuckets = 4096

func newLimiter(l EnterLimit, now func() time.Time) *limiter {
	lim := &limiter{burst: float64(l.Burst), rate: float64(l.PerSecond), now: now}
	for i := range lim.shards {
		lim.shards[i].buckets = map[addrKey]bucket{}
	}
	return lim
}

func (l *limiter) exempt(a netip.Addr) bool {
	return l.burst < 0 || !a.IsValid() || a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast()
}

// take takes a token, and says whether there was one. With debt it takes one anyway.
func (l *limiter) take(a netip.Addr, debt bool) bool {
	if l.exempt(a) {
		return true
	}
	return l.move(a, -1, debt)
}

// back returns a token that was taken for nothing.
func (l *limiter) back(a netip.Addr) {
	if !l.exempt(a) {
		l.move(a, 1, true)
	}
}

func (l *limiter) move(a netip.Addr, by float64, debt bool) bool {
	k := keyOf(a)
	sh := &l.shards[(k.prefix*0x9e3779b97f4a7c15)>>60]
	now := l.now().UnixNano()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b, ok := sh.buckets[k]
	if !ok {
		if len(sh.buckets) >= maxBuckets {
			l.evict(sh, now)
		}
		b = bucket{l.burst, now}
	}
	b = l.fill(b, now)
	if by < 0 && b.tokens < 1 && !debt {
		sh.buckets[k] = b
		return false
	}
	b.tokens = max(min(b.tokens+by, l.burst), -l.burst)
	sh.buckets[k] = b
	return true
}

func (l *limiter) fill(b bucket, now int64) bucket {
	if d := now - b.at; d > 0 {
		b.tokens = min(b.tokens+l.rate*float64(d)/1e9, l.burst)
		b.at = now
	}
	return b
}

// evict pushes out the fullest of a few buckets, wherever the map begins.
func (l *limiter) evict(sh *limitShard, now int64) {
	var victim addrKey
	most, n := -l.burst-1, 0
	for k, b := range sh.buckets {
		if t := l.fill(b, now).tokens; t > most {
			victim, most = k, t
		}
		if n++; n == 8 {
			break
		}
	}
	delete(sh.buckets, victim)
}

func keyOf(a netip.Addr) addrKey {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return addrKey{uint64(binary.BigEndian.Uint32(b[:])), true}
	}
	b := a.As16()
	return addrKey{binary.BigEndian.Uint64(b[:8]), false}
}
