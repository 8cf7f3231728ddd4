package instances

import (
	"context"
	"sync"
	"time"
)

// Counter reads a [Source] that may fail, and never fails itself. Safe for
// concurrent use; several rooms may share one, each with its own fallback.
type Counter struct {
	source Source
	now    func() time.Time

	mu   sync.Mutex
	last memory
}

// NewCounter reads source, which must not be nil.
func NewCounter(source Source) *Counter {
	return &Counter{source: source, now: time.Now}
}

// Count asks the source. When it does not answer within ctx, or with an error,
// its last count holds for [Hold] and then fallback counts; Reading.Err says so.
func (c *Counter) Count(ctx context.Context, fallback int64) Reading {
	n, err := c.source.Count(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.read(c.now(), n, err, fallback)
}
