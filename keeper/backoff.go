package keeper

import (
	"math/rand/v2"
	"time"
)

// backoff is full jitter: a random time below a bound that doubles. Not safe for concurrent use.
type backoff struct {
	first, most time.Duration
	n           int
}

// next gives the pause before the next attempt.
func (b *backoff) next() time.Duration {
	bound := b.bound()
	b.n++
	return time.Duration(rand.Int64N(int64(bound) + 1))
}

func (b *backoff) bound() time.Duration {
	if b.n > 30 || b.first<<b.n > b.most || b.first<<b.n <= 0 {
		return b.most
	}
	return b.first << b.n
}

func (b *backoff) reset() { b.n = 0 }
