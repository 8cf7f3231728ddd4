package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/room"
)

// fill has n visitors enter.
func fill(s *redis.Rooms, id string, n int) error {
	var mu sync.Mutex
	var failed error
	left := n
	var wg sync.WaitGroup
	for range 2048 {
		wg.Go(func() {
			for {
				mu.Lock()
				if left == 0 || failed != nil {
					mu.Unlock()
					return
				}
				left--
				mu.Unlock()
				res, err := s.Do(context.Background(), id, newEnter())
				if err == nil {
					err = res.Err
				}
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// watch keeps a room's mirror.
type watch struct {
	mu     sync.Mutex
	mirror *room.Mirror
	ready  chan struct{}
	once   sync.Once
}

func (w *watch) Reset(m *room.Mirror) {
	w.mu.Lock()
	w.mirror = m
	w.mu.Unlock()
	w.once.Do(func() { close(w.ready) })
}

func (w *watch) Apply(events []room.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range events {
		w.mirror.Apply(&events[i])
	}
}

func (w *watch) summary() room.Summary {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mirror.Summary
}

func follow(s *redis.Rooms, id string) (*watch, func(), error) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{ready: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- s.Follow(ctx, id, w) }()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	select {
	case <-w.ready:
		return w, stop, nil
	case err := <-done:
		cancel()
		return nil, nil, err
	}
}

// places compares all places by a node's own line with one ZRANK each.
func places(e *env, n int) error {
	if err := e.flush(); err != nil {
		return err
	}
	s, err := e.rooms(redis.RoomOptions{}, config(1))
	if err != nil {
		return err
	}
	defer s.Close()
	began := time.Now()
	if err := fill(s, "bench", n+1); err != nil {
		return err
	}
	filled := time.Since(began)
	other, err := redis.NewRooms(context.Background(), e.client, redis.RoomOptions{Owns: func(string) bool { return false }})
	if err != nil {
		return err
	}
	defer other.Close()
	began = time.Now()
	w, stop, err := follow(other, "bench")
	if err != nil {
		return err
	}
	defer stop()
	started := time.Since(began)
	w.mu.Lock()
	if got := w.mirror.Line.Len(); got != n {
		w.mu.Unlock()
		return fmt.Errorf("%d wait, not %d", got, n)
	}
	began = time.Now()
	for pos := uint64(2); pos < uint64(n)+2; pos++ {
		place, ok := w.mirror.Place(room.View{State: room.Waiting, Pos: pos})
		if !ok || place != int64(pos)-1 {
			w.mu.Unlock()
			return fmt.Errorf("pos %d has place %d", pos, place)
		}
	}
	own := time.Since(began)
	w.mu.Unlock()
	memory, err := e.do("INFO", "memory").ToString()
	if err != nil {
		return err
	}
	used := infoNumber(memory, "used_memory:")
	stop()
	if err := e.flush(); err != nil {
		return err
	}
	members := make([]string, n)
	for i := 0; i < n; i += 1000 {
		args := []string{"ZADD", "line"}
		for j := i; j < min(i+1000, n); j++ {
			id := newEnter().NewID
			members[j] = string(id[:])
			args = append(args, strconv.Itoa(j), members[j])
		}
		if err := e.do(args...).Error(); err != nil {
			return err
		}
	}
	began = time.Now()
	for i := 0; i < n; i += 1000 {
		cmds := make(rueidis.Commands, 0, 1000)
		for _, m := range members[i:min(i+1000, n)] {
			cmds = append(cmds, e.client.B().Zrank().Key("line").Member(m).Build())
		}
		for _, r := range e.client.DoMulti(context.Background(), cmds...) {
			if err := r.Error(); err != nil {
				return err
			}
		}
	}
	ranked := time.Since(began)
	fmt.Printf("places of %d who wait (entered in %v, %.0f a second; %.0f bytes of Redis each; request ids kept)\n\n", n, filled.Round(time.Millisecond), float64(n)/filled.Seconds(), float64(used)/float64(n))
	t := table()
	fmt.Fprintln(t, "what\tall places\ta place")
	fmt.Fprintf(t, "by the node's own line\t%v\t%v\n", own.Round(10*time.Microsecond), own/time.Duration(n))
	fmt.Fprintf(t, "ZRANK each, pipelined by 1,000\t%v\t%v\n", ranked.Round(time.Millisecond), ranked/time.Duration(n))
	fmt.Fprintf(t, "ratio\t%.0f\t\n", float64(ranked)/float64(own))
	fmt.Fprintf(t, "a node that starts follows after\t%v\t\n", started.Round(time.Millisecond))
	t.Flush()
	fmt.Println()
	return nil
}

func infoNumber(info, name string) (n int64) {
	for _, line := range strings.Split(info, "\r\n") {
		if len(line) > len(name) && line[:len(name)] == name {
			n, _ = strconv.ParseInt(line[len(name):], 10, 64)
		}
	}
	return n
}

// bulk raises a limit by n, and then lets n fall silent.
func bulk(e *env, n int) error {
	if err := e.flush(); err != nil {
		return err
	}
	c := config(1)
	s, err := e.rooms(redis.RoomOptions{}, c)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := fill(s, "bench", n+1); err != nil {
		return err
	}
	w, stop, err := follow(s, "bench")
	if err != nil {
		return err
	}
	defer stop()
	until := func(what string, done func(room.Summary) bool) (time.Duration, error) {
		began := time.Now()
		for !done(w.summary()) {
			if time.Since(began) > 5*time.Minute {
				return 0, fmt.Errorf("%s: not within five minutes: %+v", what, w.summary())
			}
			time.Sleep(time.Millisecond)
		}
		return time.Since(began), nil
	}
	fmt.Printf("bulk moves of %d\n\n", n)
	var cpu time.Duration
	t := table()
	fmt.Fprintln(t, "what\ttook\ta second\tcalls\tCPU a call\tlongest call by the clock\tover 5 ms")
	line := func(what string, took time.Duration) error {
		longest, over, err := e.slowest()
		if err != nil {
			return err
		}
		calls, err := e.calls()
		if err != nil {
			return err
		}
		now, err := e.cpu()
		each := (now - cpu) / time.Duration(calls)
		fmt.Fprintf(t, "%s\t%v\t%.0f\t%d\t%v\t%v\t%d\n", what, took.Round(time.Millisecond), float64(n)/took.Seconds(), calls, each.Round(10*time.Microsecond), longest, over)
		return err
	}
	reset := func() (err error) {
		if cpu, err = e.cpu(); err != nil {
			return err
		}
		return e.reset()
	}
	if err := reset(); err != nil {
		return err
	}
	c.Capacity.Active = int64(n) + 1
	if err := e.configure(s, c); err != nil {
		return err
	}
	took, err := until("admitted", func(s room.Summary) bool { return s.Waiting == 0 })
	if err != nil {
		return err
	}
	if err := line("slots opened: admitted", took); err != nil {
		return err
	}
	if err := reset(); err != nil {
		return err
	}
	c.Session.Idle = room.Duration(time.Second)
	c.Session.Max = room.Duration(2 * time.Hour)
	if err := e.configure(s, c); err != nil {
		return err
	}
	if took, err = until("expired", func(s room.Summary) bool { return s.Active == 0 }); err != nil {
		return err
	}
	if err := line("sessions over, idle cut to 1 s", took); err != nil {
		return err
	}
	c.Session.Idle, c.Capacity.Active = room.Duration(time.Hour), 1
	if err := e.configure(s, c); err != nil {
		return err
	}
	if err := fill(s, "bench", n+1); err != nil {
		return err
	}
	if err := reset(); err != nil {
		return err
	}
	c.Queue.Grace = room.Duration(time.Second)
	if err := e.configure(s, c); err != nil {
		return err
	}
	if took, err = until("abandoned", func(s room.Summary) bool { return s.Waiting == 0 }); err != nil {
		return err
	}
	if err := line("waiters gone, grace cut to 1 s", took); err != nil {
		return err
	}
	// The same for an opening in drawn order: everybody enters in the prequeue, and all slots are there at once.
	c = config(int64(n) + 1)
	c.ID = "drawn"
	c.Schedule.OpensAt, c.Schedule.Prequeue = room.Time{Time: time.Now().Add(time.Hour)}, room.Duration(2*time.Hour)
	if err := e.configure(s, c); err != nil {
		return err
	}
	if err := fill(s, "drawn", n); err != nil {
		return err
	}
	stop()
	if w, stop, err = follow(s, "drawn"); err != nil {
		return err
	}
	defer stop()
	if err := reset(); err != nil {
		return err
	}
	c.Schedule.OpensAt = room.Time{Time: time.Now()}
	if err := e.configure(s, c); err != nil {
		return err
	}
	if took, err = until("opened", func(s room.Summary) bool { return s.Waiting == 0 }); err != nil {
		return err
	}
	if err := line("opened: admitted as drawn", took); err != nil {
		return err
	}
	t.Flush()
	fmt.Println()
	return nil
}

func (e *env) reset() error {
	if err := e.do("SLOWLOG", "RESET").Error(); err != nil {
		return err
	}
	return e.do("CONFIG", "RESETSTAT").Error()
}

// slowest is the longest call since reset, and how many were over 5 ms.
func (e *env) slowest() (longest time.Duration, over int, err error) {
	list, err := e.do("SLOWLOG", "GET", "1024").ToArray()
	if err != nil {
		return 0, 0, err
	}
	for i := range list {
		entry, err := list[i].ToArray()
		if err != nil {
			return 0, 0, err
		}
		us, err := entry[2].AsInt64()
		if err != nil {
			return 0, 0, err
		}
		d := time.Duration(us) * time.Microsecond
		longest = max(longest, d)
		if d > 5*time.Millisecond {
			over++
		}
	}
	return longest, over, nil
}

// cpu is the time that the server's main thread has had.
func (e *env) cpu() (time.Duration, error) {
	info, err := e.do("INFO", "cpu").ToString()
	if err != nil {
		return 0, err
	}
	var d time.Duration
	for _, line := range strings.Split(info, "\r\n") {
		for _, name := range []string{"used_cpu_user_main_thread:", "used_cpu_sys_main_thread:"} {
			if v, ok := strings.CutPrefix(line, name); ok {
				s, err := strconv.ParseFloat(v, 64)
				if err != nil {
					return 0, err
				}
				d += time.Duration(s * float64(time.Second))
			}
		}
	}
	return d, nil
}

func (e *env) calls() (int64, error) {
	info, err := e.do("INFO", "commandstats").ToString()
	if err != nil {
		return 0, err
	}
	var n int64
	for _, line := range strings.Split(info, "\r\n") {
		var calls int64
		if k, _ := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &calls); k == 1 {
			n += calls
		}
	}
	return n, nil
}
