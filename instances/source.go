package instances

import "context"

// Source counts the living instances of what a room protects, for
// capacity.per_instance. Safe for concurrent use.
type Source interface {
	// Count says how many live now. It answers from what the source already
	// knows wherever it can, so it may be called each second; ctx bounds what it
	// has to ask. An error means that the number is not known, never that it is
	// zero, and says why with its mend. [Counter] then holds the last count.
	Count(ctx context.Context) (int64, error)
}

// Static is a number that an operator wrote down. It always answers.
type Static int64

// Count gives the number.
func (s Static) Count(context.Context) (int64, error) { return int64(s), nil }

// Func is a function as a [Source].
type Func func(ctx context.Context) (int64, error)

// Count calls f.
func (f Func) Count(ctx context.Context) (int64, error) { return f(ctx) }
