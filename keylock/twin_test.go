package keylock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/keylock"
)

// twin is the lock as one would write it down: a list per key, whose first one holds.
type twin map[string][]*person

// person is one call of Lock.
type person struct {
	id     int
	key    string
	cancel context.CancelFunc
	got    chan error
	hold   keylock.Hold
	at     time.Time
}

func (tw twin) leave(p *person) {
	tw[p.key] = slices.DeleteFunc(tw[p.key], func(q *person) bool { return p == q })
}

// TestTwin runs random commands on the real locks and on the twin and compares who holds after each.
func TestTwin(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runTwin(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

const twinHold, twinWait, twinQueue = 16 * time.Second, 11500 * time.Millisecond, 4

func runTwin(t *testing.T, rng *rand.Rand) {
	l := keylock.New(keylock.Options{MaxWaiting: twinQueue, MaxWait: twinWait, MaxHold: twinHold})
	tw := twin{}
	var late []*person
	n := 0
	for range 400 {
		key := string(rune('a' + rng.IntN(3)))
		line := tw[key]
		switch op := rng.IntN(10); {
		case op < 5:
			ctx, cancel := context.WithCancel(t.Context())
			p := &person{id: n, key: key, cancel: cancel, got: make(chan error, 1), at: time.Now()}
			n++
			go func() {
				var err error
				p.hold, err = l.Lock(ctx, key)
				p.got <- err
			}()
			synctest.Wait()
			if len(line) > twinQueue {
				if err := <-p.got; !errors.Is(err, keylock.ErrFull) {
					t.Fatalf("%d is one too many: %v", p.id, err)
				}
				cancel()
				continue
			}
			tw[key] = append(line, p)
		case op < 7 && len(line) > 0: // the holder is done
			if err := line[0].hold.Release(); err != nil {
				t.Fatalf("%d releases: %v", line[0].id, err)
			}
			tw.grantNext(line[0])
		case op < 8 && len(line) > 1: // somebody in the queue gives up
			p := line[1+rng.IntN(len(line)-1)]
			p.cancel()
			synctest.Wait()
			if err := <-p.got; !errors.Is(err, context.Canceled) {
				t.Fatalf("%d cancelled: %v", p.id, err)
			}
			tw.leave(p)
		case op < 9:
			time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
			synctest.Wait()
			late = append(late, tw.timePasses(t)...)
		case len(late) > 0:
			k := rng.IntN(len(late))
			if err := late[k].hold.Release(); !errors.Is(err, keylock.ErrForced) {
				t.Fatalf("late release of %d: %v", late[k].id, err)
			}
			late = slices.Delete(late, k, k+1)
		}
		synctest.Wait()
		tw.compare(t, l, len(late))
	}
	for _, line := range tw {
		for _, p := range line {
			p.cancel()
		}
	}
	synctest.Wait()
}

func (tw twin) grantNext(p *person) {
	p.cancel()
	tw.leave(p)
	if line := tw[p.key]; len(line) > 0 {
		line[0].at = time.Now() // the hold counts from the grant
	}
}

// timePasses lets waits expire, and believes the lock in which tick a hold was forced, within its eighth.
func (tw twin) timePasses(t *testing.T) (forced []*person) {
	for key := range tw {
		for again := true; again && len(tw[key]) > 0; {
			again = false
			for _, p := range slices.Clone(tw[key][1:]) {
				select {
				case err := <-p.got:
					if err == nil { // the holder was forced meanwhile
						p.got <- nil
						continue
					}
					if d := time.Since(p.at); !errors.Is(err, keylock.ErrWait) || d < twinWait {
						t.Fatalf("%d: %v after %v", p.id, err, d)
					}
					tw.leave(p)
				default:
				}
			}
			h := tw[key][0]
			select {
			case err := <-h.got:
				h.got <- err
			default:
				continue
			}
			held := time.Since(h.at)
			if held > twinHold+twinHold/8 && !h.forcedNow() {
				t.Fatalf("%d holds for %v", h.id, held)
			}
			if h.forcedNow() {
				if held < twinHold {
					t.Fatalf("%d was forced after %v", h.id, held)
				}
				forced = append(forced, h)
				tw.grantNext(h)
				again = true
			}
		}
	}
	return forced
}

// forcedNow asks the hold's context, the only one who knows without touching the hold.
func (p *person) forcedNow() bool {
	ctx := p.hold.Context(context.Background())
	return context.Cause(ctx) == keylock.ErrForced
}

func (tw twin) compare(t *testing.T, l *keylock.Locks, late int) {
	t.Helper()
	want := keylock.Stats{Late: late}
	for key, line := range tw {
		for i, p := range line {
			select {
			case err := <-p.got:
				p.got <- err
				if i != 0 || err != nil {
					t.Fatalf("%d of %q stands at %d and got %v", p.id, key, i, err)
				}
			default:
				if i == 0 {
					t.Fatalf("%d of %q should hold", p.id, key)
				}
			}
		}
		if len(line) > 0 {
			want.Keys++
			want.Held++
			want.Waiting += len(line) - 1
		}
	}
	got := l.Stats()
	got.Granted, got.Forced, got.Full, got.Expired = 0, 0, 0, 0
	if got != want {
		t.Fatalf("stats %+v, want %+v", got, want)
	}
}
