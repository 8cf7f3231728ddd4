package gate

import "context"

// Store keeps gates' keys. Engines implement it; gatetest holds each of them to what is said
// here. Every method is safe for concurrent use.
type Store interface {
	// Do obeys one command on a key, as Machine.Step would at Result.At, and answers after the
	// change is as durable as the engine makes it. The machine's answers come as Result.Err; an
	// error is the store's: ErrUnavailable (nothing was done), ErrUnknown (ask again with the same
	// id), ErrBadRequest, or ctx's own where it had ended before.
	//
	// A fence is greater than every fence of that key before it, whatever was released, deleted
	// or restarted meanwhile.
	Do(ctx context.Context, key string, cmd *Command) (Result, error)

	// Watch calls wake after every Result with Wake, by whatever process, and once when calls
	// may have been missed, until ctx ends. It returns after the watch has begun, or with why it
	// could not. wake must not block and may be called by many goroutines.
	Watch(ctx context.Context, key string, wake func()) error

	// Health is nil while commands can be taken; else it says what is wrong and the mend.
	Health() error
}
