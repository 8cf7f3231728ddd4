package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/flight"
	"github.com/ushergo/usher/flight/shared"
)

// Flights is a store for package flight/shared in Redis or Valkey, version 6 or later: single, Sentinel or Cluster. It
// lives with a failover: a lead that the new primary does not know is lost, and its load may run beside its successor's.
//
// Layout, for a space S and the part P (0 to 15) that a key K belongs to, all in one slot:
//
//	usher:flight:{S/P}      hash: v 1, fence, all. It has no expiry: fences must not go back
//	usher:flight:{S/P}:K    hash: v 1, the lead, the last result, the hold; expires when it has no more use
//	usher:flight:S          channel: "e" K ended, "f" K forgotten, "a" all forgotten
type Flights struct {
	client rueidis.Client
}

// NewFlights makes a store on a client that stays the caller's to close.
func NewFlights(client rueidis.Client) *Flights { return &Flights{client: client} }

var (
	//go:embed flight_begin.lua
	flightBeginSource string
	//go:embed flight_end.lua
	flightEndSource string
	//go:embed flight_prelude.lua
	flightPrelude string

	flightBegin = rueidis.NewLuaScript(flightPrelude + flightBeginSource)
	flightEnd   = rueidis.NewLuaScript(flightPrelude + flightEndSource)
)

var flightSpaceName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

func flightChannel(space string) string { return "usher:flight:" + space }

func flightKeys(space, key string, shard int) ([]string, error) {
	if !flightSpaceName.MatchString(space) {
		return nil, fmt.Errorf("redis: flight space %q: use 1 to 64 of A-Z a-z 0-9 _ . -", space)
	}
	tag := "usher:flight:{" + space + "/" + strconv.Itoa(shard) + "}"
	return []string{tag, tag + ":" + key}, nil
}

func (s *Flights) run(ctx context.Context, script *rueidis.Lua, space, key string, shard int, args ...string) (flightReply, error) {
	keys, err := flightKeys(space, key, shard)
	if err != nil {
		return nil, err
	}
	msgs, err := script.Exec(ctx, s.client, keys, args).ToArray()
	if err != nil {
		var re *rueidis.RedisError
		if errors.As(err, &re) && strings.Contains(re.Error(), "USHERLAYOUT") {
			_, what, _ := strings.Cut(re.Error(), "USHERLAYOUT ")
			return nil, fmt.Errorf("redis: %s: %w", what, shared.ErrForeign)
		}
		return nil, fmt.Errorf("redis: flight %s: %w", space, err)
	}
	r := make(flightReply, len(msgs))
	for i := range msgs {
		if r[i], err = msgs[i].ToString(); err != nil {
			return nil, fmt.Errorf("redis: flight %s: answer %d: %w", space, i, err)
		}
	}
	return r, nil
}

// flightReply is a script's answer: strings, numbers written out.
type flightReply []string

func (r flightReply) num(i int) int64 {
	if i >= len(r) {
		return 0
	}
	n, _ := strconv.ParseInt(r[i], 10, 64)
	return n
}

func (r flightReply) str(i int) string {
	if i >= len(r) {
		return ""
	}
	return r[i]
}

func flightTime(us int64) time.Time { return time.UnixMicro(us).UTC() }

func flightMicros(d time.Duration) string { return strconv.FormatInt(int64(d/time.Microsecond), 10) }

func flightFence(f uint64) string { return strconv.FormatUint(f, 10) }

// Begin implements shared.Store.
func (s *Flights) Begin(ctx context.Context, b shared.Begin) (shared.State, error) {
	r, err := s.run(ctx, flightBegin, b.Space, b.Key, shared.ShardOf(b.Key),
		b.Token, flightMicros(b.Lease), flightFence(b.After), flightMicros(b.MaxAge))
	if err != nil {
		return shared.State{}, err
	}
	st := shared.State{
		Kind: shared.Kind(r.num(0)), At: flightTime(r.num(1)), Fence: uint64(r.num(2)), After: uint64(r.num(3)),
		Left: time.Duration(r.num(4)) * time.Microsecond, Failures: int(r.num(5)),
		Result: shared.Result{
			Status: shared.Status(r.num(6)), Class: flight.Class(r.num(7)), Message: r.str(8), Superseded: r.num(9) == 1,
		},
	}
	if v := r.str(10); v != "" {
		st.Result.Value = []byte(v)
	}
	return st, nil
}

// Renew implements shared.Store.
func (s *Flights) Renew(ctx context.Context, x shared.Renew) (shared.Renewed, error) {
	r, err := s.run(ctx, flightEnd, x.Space, x.Key, shared.ShardOf(x.Key), "renew", flightFence(x.Fence), flightMicros(x.Lease))
	return shared.Renewed{At: flightTime(r.num(0)), Held: r.num(1) == 1}, err
}

// Finish implements shared.Store.
func (s *Flights) Finish(ctx context.Context, f shared.Finish) (shared.Finished, error) {
	r, err := s.run(ctx, flightEnd, f.Space, f.Key, shared.ShardOf(f.Key), "finish", flightFence(f.Fence),
		strconv.Itoa(int(f.Result.Status)), strconv.Itoa(int(f.Result.Class)), f.Result.Message, string(f.Result.Value),
		flightMicros(f.Keep), flightMicros(f.Hold), flightChannel(f.Space), f.Key)
	return shared.Finished{At: flightTime(r.num(0)), Lost: r.num(1) == 1, Superseded: r.num(2) == 1}, err
}

// Forget implements shared.Store.
func (s *Flights) Forget(ctx context.Context, space, key string) error {
	_, err := s.run(ctx, flightEnd, space, key, shared.ShardOf(key), "forget", flightChannel(space), key)
	return err
}

// ForgetAll implements shared.Store. The parts of a space are forgotten one after the other; what a caller is told after
// it has returned is newer.
func (s *Flights) ForgetAll(ctx context.Context, space string) error {
	for i := range shared.Shards {
		if _, err := s.run(ctx, flightEnd, space, "", i, "all"); err != nil {
			return err
		}
	}
	err := s.client.Do(ctx, s.client.B().Publish().Channel(flightChannel(space)).Message("a").Build()).Error()
	if err != nil {
		return fmt.Errorf("redis: flight %s: %w", space, err)
	}
	return nil
}

// Watch implements shared.Store. It subscribes anew, after a pause that doubles to a second, as often as it must.
func (s *Flights) Watch(ctx context.Context, space string, told func(shared.Event)) error {
	if _, err := flightKeys(space, "", 0); err != nil {
		return err
	}
	pause := 10 * time.Millisecond
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(p rueidis.PubSubSubscription) {
		if p.Kind == "subscribe" {
			pause = 10 * time.Millisecond
			told(shared.Event{What: shared.Missed})
		}
	})
	for ctx.Err() == nil {
		s.client.Receive(hooked, s.client.B().Subscribe().Channel(flightChannel(space)).Build(), func(m rueidis.PubSubMessage) { //nolint:errcheck // whatever it was, subscribe again
			if m.Message == "" {
				return
			}
			switch key := m.Message[1:]; m.Message[0] {
			case 'e':
				told(shared.Event{What: shared.Ended, Key: key})
			case 'f':
				told(shared.Event{What: shared.Forgotten, Key: key})
			case 'a':
				told(shared.Event{What: shared.AllGone})
			}
		})
		select {
		case <-ctx.Done():
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		}
	}
	return nil
}
