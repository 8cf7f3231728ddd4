package redis_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/gate"
)

// javaSide plays Redisson's RPermitExpirableSemaphore: the same keys, effects, messages and caller's clock, as seen from outside
// (one script a call, KEYS counter, permits, channel). The text of the scripts is ours.
type javaSide struct {
	t       testing.TB
	c       rueidis.Client
	key     string
	publish string
}

const permanent = 922337203685477

const javaReclaim = `
local function reclaim(now, upto)
  local gone = upto and redis.call('ZRANGEBYSCORE', KEYS[2], 0, now, 'LIMIT', 0, upto) or redis.call('ZRANGEBYSCORE', KEYS[2], 0, now)
  if #gone > 0 then
    redis.call('ZREM', KEYS[2], unpack(gone))
    local value = redis.call('INCRBY', KEYS[1], #gone)
    if value > 0 then redis.call(ARGV[1], KEYS[3], value) end
  end
end
`

func (j *javaSide) eval(script string, args ...string) rueidis.RedisResult {
	j.t.Helper()
	keys := []string{j.key, "{" + j.key + "}:timeout", "redisson_sc:{" + j.key + "}"}
	r := j.c.Do(context.Background(), j.c.B().Eval().Script(javaReclaim+script).Numkeys(3).Key(keys...).Arg(append([]string{j.publish}, args...)...).Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		j.t.Errorf("java: %v", err)
	}
	return r
}

func javaNow() int64 { return time.Now().UnixMilli() }

func i64(n int64) string { return strconv.FormatInt(n, 10) }

// tryAcquire returns the ids, or nil. lease 0: the permit never expires.
func (j *javaSide) tryAcquire(n int, lease time.Duration) []gate.ID {
	j.t.Helper()
	ends := int64(permanent)
	if lease > 0 {
		ends = javaNow() + lease.Milliseconds()
	}
	ids := make([]gate.ID, n)
	args := []string{i64(javaNow()), i64(ends)}
	for i := range ids {
		rand.Read(ids[i][:])
		args = append(args, string(ids[i][:]))
	}
	got, _ := j.eval(`
local n = #ARGV - 3
reclaim(ARGV[2], n)
local value = redis.call('GET', KEYS[1])
if value and tonumber(value) >= n then
  redis.call('DECRBY', KEYS[1], n)
  for i = 1, n do redis.call('ZADD', KEYS[2], ARGV[3], ARGV[3 + i]) end
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl > 0 then redis.call('PEXPIRE', KEYS[2], ttl) end
  return 'OK'
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if first[1] and first[2] ~= '922337203685477' then return ':' .. first[2] end
return false`, args...).ToString()
	if got != "OK" {
		return nil
	}
	return ids
}

func (j *javaSide) release(id gate.ID) bool {
	j.t.Helper()
	n, _ := j.eval(`
local ends = redis.call('ZSCORE', KEYS[2], ARGV[3])
if not ends then return 0 end
redis.call('ZREM', KEYS[2], ARGV[3])
redis.call(ARGV[1], KEYS[3], redis.call('INCRBY', KEYS[1], 1))
if tonumber(ends) <= tonumber(ARGV[2]) then return 0 end
return 1`, i64(javaNow()), string(id[:])).AsInt64()
	return n == 1
}

func (j *javaSide) updateLeaseTime(id gate.ID, lease time.Duration) bool {
	j.t.Helper()
	n, _ := j.eval(`
reclaim(ARGV[2])
if not redis.call('ZSCORE', KEYS[2], ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
return 1`, i64(javaNow()), string(id[:]), i64(javaNow()+lease.Milliseconds())).AsInt64()
	return n == 1
}

func (j *javaSide) trySetPermits(n int64) bool {
	j.t.Helper()
	ok, _ := j.eval(`
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call(ARGV[1], KEYS[3], ARGV[2])
return 1`, i64(n)).AsInt64()
	return ok == 1
}

func (j *javaSide) setPermits(n int64) {
	j.t.Helper()
	j.eval(`
local value = redis.call('GET', KEYS[1])
if not value then
  redis.call('SET', KEYS[1], ARGV[2])
else
  local all = tonumber(value) + redis.call('ZCOUNT', KEYS[2], 0, '+inf')
  if all ~= tonumber(ARGV[2]) then redis.call('INCRBY', KEYS[1], tonumber(ARGV[2]) - all) end
end
redis.call(ARGV[1], KEYS[3], ARGV[2])
return 1`, i64(n))
}

func (j *javaSide) addPermits(d int64) {
	j.t.Helper()
	j.eval(`
local value = tonumber(redis.call('GET', KEYS[1]) or '0')
redis.call('SET', KEYS[1], value + ARGV[2])
if tonumber(ARGV[2]) > 0 then redis.call(ARGV[1], KEYS[3], ARGV[2]) end
return 1`, i64(d))
}

func (j *javaSide) availablePermits() int64 {
	j.t.Helper()
	n, _ := j.eval(`reclaim(ARGV[2]) return tonumber(redis.call('GET', KEYS[1]) or '0')`, i64(javaNow())).AsInt64()
	return n
}

func (j *javaSide) getPermits() int64 {
	j.t.Helper()
	n, _ := j.eval(`
reclaim(ARGV[2])
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
return tonumber(value) + redis.call('ZCOUNT', KEYS[2], 0, '+inf')`, i64(javaNow())).AsInt64()
	return n
}

// raw is what is in Redis now: free permits and held ones, expired or not.
func (j *javaSide) raw() (free, held int64) {
	j.t.Helper()
	free, _ = must(j.t, j.c, "GET", j.key).AsInt64()
	held, _ = must(j.t, j.c, "ZCARD", "{"+j.key+"}:timeout").AsInt64()
	return free, held
}

func eachLayout(t *testing.T, test func(t *testing.T, s *gateServers, java *javaSide, ours *redis.Gates)) {
	for _, tc := range []struct {
		name    string
		servers int
		cluster bool
		publish string
	}{{"single", 1, false, "PUBLISH"}, {"cluster", 3, true, "SPUBLISH"}} {
		t.Run(tc.name, func(t *testing.T) {
			s := startGateServers(t, tc.servers, tc.cluster)
			test(t, s, &javaSide{t, s.client(), "shared:permits", tc.publish}, s.gates(redis.GateOptions{}))
		})
	}
}

// TestRedissonTurns: Java's calls and ours, one at a time, at random; after each the counts are what they have to be.
func TestRedissonTurns(t *testing.T) {
	eachLayout(t, func(t *testing.T, _ *gateServers, java *javaSide, ours *redis.Gates) {
		seed := mrand.Uint64()
		t.Logf("seed %d", seed)
		rnd := mrand.New(mrand.NewPCG(seed, 7))
		do := func(c *gate.Command) gate.Result {
			t.Helper()
			r, err := ours.Do(t.Context(), java.key, c)
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			return r
		}
		var ids []gate.ID // of both sides
		pick := func() gate.ID { return ids[rnd.IntN(len(ids))] }
		var total int64
		if !java.trySetPermits(5) {
			t.Fatal("trySetPermits")
		}
		total = 5
		var granted [2]int
		for n := range 3000 {
			ms := func(upto int) time.Duration { return time.Duration(1+rnd.IntN(upto)) * time.Millisecond }
			what := ""
			before, _ := java.raw()
			switch x := rnd.IntN(100); {
			case x < 25:
				what = "java tryAcquire"
				k := 1 + rnd.IntN(3)
				if got := java.tryAcquire(k, ms(40)); got != nil {
					ids = append(ids, got...)
					granted[0]++
				} else if before >= int64(k) {
					t.Fatalf("step %d: Java was refused %d of %d", n, k, before)
				}
			case x < 50:
				what = "our acquire"
				c := &gate.Command{Op: gate.OpAcquire, N: 1 + rnd.IntN(3), Lease: ms(40)}
				rand.Read(c.ID[:])
				if r := do(c); r.Err == nil {
					ids = append(ids, c.ID.Members(c.N)...)
					granted[1]++
				} else if !errors.Is(r.Err, gate.ErrFull) || before >= int64(c.N) {
					t.Fatalf("step %d: %d of %d: %v", n, c.N, before, r.Err)
				}
			case x < 64 && len(ids) > 0:
				what = "java release"
				java.release(pick())
			case x < 78 && len(ids) > 0:
				what = "our release"
				do(&gate.Command{Op: gate.OpRelease, ID: pick()})
			case x < 82 && len(ids) > 0:
				what = "java updateLeaseTime"
				java.updateLeaseTime(pick(), ms(40))
			case x < 86 && len(ids) > 0:
				what = "our extend"
				do(&gate.Command{Op: gate.OpExtend, ID: pick(), Lease: ms(40)})
			case x < 88:
				what = "java addPermits"
				d := int64(rnd.IntN(5) - 2)
				if total+d < 1 {
					continue
				}
				java.addPermits(d)
				total += d
			case x < 90:
				what = "java setPermits"
				total = int64(1 + rnd.IntN(8))
				java.setPermits(total)
			case x < 92:
				what = "our set"
				total = int64(1 + rnd.IntN(8))
				do(&gate.Command{Op: gate.OpSet, Permits: total})
			case x < 94:
				what = "java trySetPermits"
				if java.trySetPermits(99) {
					t.Fatalf("step %d: it was set already", n)
				}
			case x < 97:
				what = "java getPermits"
				if got := java.getPermits(); got != total {
					t.Fatalf("step %d: Java counts %d, want %d", n, got, total)
				}
			default:
				what = "our status"
				if r := do(&gate.Command{Op: gate.OpStatus}); r.Limit != total {
					t.Fatalf("step %d: we count %d, want %d", n, r.Limit, total)
				}
			}
			if free, held := java.raw(); free+held != total {
				t.Fatalf("step %d, %s: %d free + %d held, want %d", n, what, free, held, total)
			}
			if len(ids) > 12 {
				ids = ids[1:]
			}
		}
		if granted[0] < 50 || granted[1] < 50 {
			t.Errorf("Java was granted %d, we %d", granted[0], granted[1])
		}
	})
}

// TestRedissonStorm: both sides at once. With everything given back, all permits are free.
func TestRedissonStorm(t *testing.T) {
	eachLayout(t, func(t *testing.T, _ *gateServers, java *javaSide, ours *redis.Gates) {
		java.setPermits(6)
		g, err := gate.New(ours, gate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		var mu sync.Mutex
		inside := 0 // of those who give back in time
		enter := func(d int) {
			mu.Lock()
			defer mu.Unlock()
			if inside += d; inside > 6 {
				t.Errorf("%d permits held of 6", inside)
			}
		}
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				rnd := mrand.New(mrand.NewPCG(mrand.Uint64(), uint64(w)))
				for range 60 {
					n, crash := 1+rnd.IntN(2), rnd.IntN(8) == 0
					lease := time.Minute
					if crash {
						lease = 10 * time.Millisecond
					}
					if w%2 == 0 {
						ids := java.tryAcquire(n, lease)
						if ids == nil || crash {
							continue
						}
						enter(n)
						enter(-n)
						for _, id := range ids {
							if !java.release(id) {
								t.Error("Java's permit was not there any more")
							}
						}
						continue
					}
					p, err := g.Acquire(t.Context(), java.key, gate.N(n), gate.Lease(lease), gate.Wait(time.Minute))
					if err != nil {
						t.Error(err)
						continue
					}
					if crash {
						continue
					}
					enter(n)
					enter(-n)
					if err := p.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for end := time.Now().Add(20 * time.Second); java.availablePermits() != 6; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				free, held := java.raw()
				t.Fatalf("%d free, %d held", free, held)
			}
		}
		if n := java.getPermits(); n != 6 {
			t.Errorf("%d permits", n)
		}
	})
}

// TestRedissonWakes: each side wakes the other, and what it says can be read by the other.
func TestRedissonWakes(t *testing.T) {
	eachLayout(t, func(t *testing.T, s *gateServers, java *javaSide, ours *redis.Gates) {
		g, err := gate.New(ours, gate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		heard := make(chan string, 100)
		listener := s.client()
		subscribed := make(chan struct{})
		ctx := rueidis.WithOnSubscriptionHook(t.Context(), func(p rueidis.PubSubSubscription) { close(subscribed) })
		channel := "redisson_sc:{" + java.key + "}"
		go func() {
			sub := listener.B().Subscribe().Channel(channel).Build()
			if s.cluster {
				sub = listener.B().Ssubscribe().Channel(channel).Build()
			}
			_ = listener.Receive(ctx, sub, func(m rueidis.PubSubMessage) { heard <- m.Message })
		}()
		<-subscribed
		next := func(what string) {
			t.Helper()
			select {
			case m := <-heard:
				if n, err := strconv.ParseInt(m, 10, 64); err != nil || n < 1 {
					t.Errorf("%s: Java heard %q", what, m)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: Java heard nothing", what)
			}
		}
		if _, err := g.Set(t.Context(), java.key, 2); err != nil {
			t.Fatal(err)
		}
		next("set")
		held := java.tryAcquire(1, time.Hour)
		mine, err := g.Acquire(t.Context(), java.key)
		if err != nil || held == nil {
			t.Fatal(err, held)
		}
		got := make(chan *gate.Permit, 1)
		go func() {
			p, err := g.Acquire(t.Context(), java.key, gate.Wait(time.Minute))
			if err != nil {
				t.Error(err)
			}
			got <- p
		}()
		for g.Stats().Waiting == 0 {
			time.Sleep(time.Millisecond)
		}
		if !java.release(held[0]) {
			t.Fatal("release")
		}
		next("Java's own release")
		second := <-got
		if err := mine.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next("our release")

		// Each side releases what the other made.
		theirs := java.tryAcquire(1, time.Hour)
		if err := g.Release(t.Context(), java.key, theirs[0]); err != nil {
			t.Errorf("releasing Java's permit: %v", err)
		}
		if !java.release(second.ID()) {
			t.Error("Java could not release ours")
		}
		if err := second.Release(t.Context()); !errors.Is(err, gate.ErrExpired) {
			t.Errorf("a permit that Java took away: %v", err)
		}
		if st, err := g.Status(t.Context(), java.key); err != nil || st.Free != 2 || st.Permits != 2 {
			t.Errorf("%+v, %v", st, err)
		}

		// A permanent permit is honoured.
		forever := java.tryAcquire(2, 0)
		if _, err := g.Acquire(t.Context(), java.key, gate.Wait(0)); !errors.Is(err, gate.ErrFull) {
			t.Errorf("beside two permanent permits of two: %v", err)
		}
		for _, id := range forever {
			if !java.release(id) {
				t.Error("a permanent permit was taken back")
			}
		}
		fmt.Fprintln(t.Output(), "free at the end:", java.availablePermits())
	})
}
