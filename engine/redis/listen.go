package redis

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// errListen is listen's when the first subscription was refused; it wraps why.
type errListen struct{ error }

func (e errListen) Unwrap() error { return e.error }

// listen returns once a channel is subscribed to, and wakes at each message until ctx ends. It subscribes anew, after a
// pause that doubles to a second, as often as it must, and wakes each time. Errors: errListen, or ctx's.
func listen(ctx context.Context, client rueidis.Client, subscribe func() rueidis.Completed, wake func()) error {
	ctx, cancel := context.WithCancel(ctx)
	begun := make(chan struct{})
	began := sync.OnceFunc(func() { close(begun) })
	failed := make(chan error, 1)
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(p rueidis.PubSubSubscription) {
		if p.Kind == "subscribe" || p.Kind == "ssubscribe" {
			began()
			wake()
		}
	})
	go func() {
		defer cancel()
		for pause := 10 * time.Millisecond; ctx.Err() == nil; {
			start := time.Now()
			err := client.Receive(hooked, subscribe(), func(rueidis.PubSubMessage) { wake() })
			select {
			case failed <- err:
			default:
			}
			if time.Since(start) > time.Second {
				pause = 10 * time.Millisecond
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
				pause = min(2*pause, time.Second)
			}
		}
	}()
	select {
	case <-begun:
		return nil
	case err := <-failed:
		cancel()
		return errListen{err}
	case <-ctx.Done():
		return ctx.Err()
	}
}
