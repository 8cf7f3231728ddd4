package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/gate"
)

// env is a Redis of our own and what is measured on it.
type env struct {
	cmd    *exec.Cmd
	dir    string
	addr   string
	client rueidis.Client
	memory *memory.Gates
	redis  *redis.Gates

	inMemory, onRedis *gate.Gate
	sync              *redsync.Redsync
	locker            rueidislock.Locker
}

func newEnv() (*env, error) {
	e := &env{}
	dir, err := os.MkdirTemp("", "bench-gate-")
	if err != nil {
		return nil, err
	}
	e.dir = dir
	if err := e.open(); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *env) open() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	e.addr = l.Addr().String()
	_, port, _ := net.SplitHostPort(e.addr)
	l.Close()
	e.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", e.dir)
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("%w; apt-get install redis-server", err)
	}
	option := rueidis.ClientOption{InitAddress: []string{e.addr}, DisableCache: true, ForceSingleClient: true}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if e.client, err = rueidis.NewClient(option); err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	if e.memory, err = memory.OpenGates(e.dir, memory.GateOptions{}); err != nil {
		return err
	}
	if e.redis, err = redis.NewGates(context.Background(), e.client, redis.GateOptions{}); err != nil {
		return err
	}
	if e.inMemory, err = gate.New(e.memory, gate.Options{Permits: 1}); err != nil {
		return err
	}
	if e.onRedis, err = gate.New(e.redis, gate.Options{Permits: 1}); err != nil {
		return err
	}
	e.sync = redsync.New(redsyncpool.NewPool(rueidiscompat.NewAdapter(e.client)))
	option.DisableCache = false // it needs client side caching
	e.locker, err = rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: option, KeyMajority: 1, KeyValidity: 30 * time.Second})
	return err
}

func (e *env) pid() int { return e.cmd.Process.Pid }

func (e *env) close() {
	if e.locker != nil {
		e.locker.Close()
	}
	if e.client != nil {
		e.client.Close()
	}
	if e.memory != nil {
		_ = e.memory.Close()
	}
	if e.cmd != nil && e.cmd.Process != nil {
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
	}
	_ = os.RemoveAll(e.dir)
}

type peer struct {
	name  string
	locks bool // callers of one key wait for each other
	pair  func(ctx context.Context, key string) error
}

// The floor: a semaphore with leases and nothing else, no repeats, no fences, no messages, no waiting.
var (
	floorAcquire = rueidis.NewLuaScript(`
if tonumber(redis.call('GET', KEYS[1]) or '1') < 1 then return 0 end
redis.call('SET', KEYS[1], tonumber(redis.call('GET', KEYS[1]) or '1') - 1)
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return 1`)
	floorRelease = rueidis.NewLuaScript(`
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then redis.call('INCRBY', KEYS[1], 1) end
return 1`)
)

func (e *env) peers() []peer {
	return []peer{
		{"floor", false, func(ctx context.Context, key string) error {
			id := rand.Text()
			keys := []string{"{" + key + "}", "{" + key + "}:z"}
			if err := floorAcquire.Exec(ctx, e.client, keys, []string{id, fmt.Sprint(time.Now().Add(30 * time.Second).UnixMilli())}).Error(); err != nil {
				return err
			}
			return floorRelease.Exec(context.WithoutCancel(ctx), e.client, keys, []string{id}).Error()
		}},
		{"gate, memory", true, func(ctx context.Context, key string) error { return pairOf(ctx, e.inMemory, fix(key)) }},
		{"gate, redis", true, func(ctx context.Context, key string) error { return pairOf(ctx, e.onRedis, fix(key)) }},
		{"redsync", true, func(ctx context.Context, key string) error {
			m := e.sync.NewMutex(key, redsync.WithExpiry(30*time.Second), redsync.WithTries(1_000_000))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			_, err := m.UnlockContext(context.WithoutCancel(ctx)) // else the next round waits for its lease
			return err
		}},
		{"rueidislock", true, func(ctx context.Context, key string) error {
			_, cancel, err := e.locker.WithContext(ctx, key)
			if err == nil {
				cancel()
			}
			return err
		}},
	}
}

// fix makes a gate's key of a peer's name.
func fix(key string) string {
	b := []byte(key)
	for i, c := range b {
		if c == ' ' || c == ',' {
			b[i] = '-'
		}
	}
	return string(b)
}
