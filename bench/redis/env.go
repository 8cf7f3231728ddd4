package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/room"
)

// env is one redis-server and a client of it.
type env struct {
	dir    string
	cmd    *exec.Cmd
	addr   string
	client rueidis.Client
}

func newEnv() (*env, error) {
	dir, err := os.MkdirTemp("", "usher-bench-redis")
	if err != nil {
		return nil, err
	}
	e := &env{dir: dir}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e.addr = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(e.addr)
	e.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "everysec", "--slowlog-log-slower-than", "1000", "--slowlog-max-len", "1024",
		"--auto-aof-rewrite-percentage", "0") // its fork is no call's
	if err := e.cmd.Start(); err != nil {
		return nil, fmt.Errorf("redis-server: %w; apt-get install redis-server", err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if e.client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{e.addr}, DisableCache: true, ForceSingleClient: true}); err == nil {
			break
		}
		if time.Now().After(end) {
			e.close()
			return nil, err
		}
	}
	info, err := e.client.Do(context.Background(), e.client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		e.close()
		return nil, err
	}
	for _, line := range strings.Split(info, "\r\n") {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			fmt.Printf("redis-server %s, appendonly yes, appendfsync everysec\n\n", v)
		}
	}
	return e, nil
}

func (e *env) close() {
	if e.client != nil {
		e.client.Close()
	}
	if e.cmd != nil && e.cmd.Process != nil {
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
	}
	_ = os.RemoveAll(e.dir)
}

func (e *env) do(args ...string) rueidis.RedisResult {
	return e.client.Do(context.Background(), e.client.B().Arbitrary(args...).Build())
}

func (e *env) flush() error { return e.do("FLUSHALL").Error() }

// rooms opens a store with one room that has so many slots.
func (e *env) rooms(opts redis.RoomOptions, c room.Config) (*redis.Rooms, error) {
	s, err := redis.NewRooms(context.Background(), e.client, opts)
	if err != nil {
		return nil, err
	}
	return s, e.configure(s, c)
}

func (e *env) configure(s *redis.Rooms, c room.Config) error {
	res, err := s.Do(context.Background(), c.ID, &room.Command{Op: room.OpConfigure, Config: &c, Seed: make([]byte, 32)})
	if err == nil {
		err = res.Err
	}
	return err
}

func config(active int64) room.Config {
	c := room.DefaultConfig("bench")
	c.Capacity.Active = active
	c.Session.Claim, c.Session.Idle, c.Session.Max = 0, room.Duration(time.Hour), room.Duration(2*time.Hour)
	c.Queue.Grace, c.Queue.MaxWaiting = room.Duration(time.Hour), 10_000_000
	return c
}

func newEnter() *room.Command {
	c := &room.Command{Op: room.OpEnter}
	rand.Read(c.NewID[:])
	rand.Read(c.Request[:])
	return c
}
