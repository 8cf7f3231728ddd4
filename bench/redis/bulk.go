package main

import (
	"context"
	"fmt"
	"slices"
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

// bulk raises a limit by n, and then lets n fall silent. It ticks itself, one call after the other, and looks before and after
// each at the CPU time that the server's main thread has had: what the clock says of a call includes the time in which other
// processes had the core.
func bulk(e *env, n int) error {
	if err := e.flush(); err != nil {
		return err
	}
	c := config(1)
	s, err := e.rooms(redis.RoomOptions{Owns: func(string) bool { return false }}, c)
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
	var calls []time.Duration // the CPU of each
	timed := func(call func() error) error {
		before, err := e.cpu()
		if err != nil {
			return err
		}
		if err := call(); err != nil {
			return err
		}
		after, err := e.cpu()
		calls = append(calls, after-before)
		return err
	}
	configure := func() error { return timed(func() error { return e.configure(s, c) }) }
	until := func(what string, done func(room.Summary) bool) (time.Duration, error) {
		began := time.Now()
		for !done(w.summary()) {
			if time.Since(began) > 5*time.Minute {
				return 0, fmt.Errorf("%s: not within five minutes: %+v", what, w.summary())
			}
			var wake time.Duration
			err := timed(func() (err error) { wake, err = s.Tick(context.Background(), c.ID); return err })
			if err != nil {
				return 0, err
			}
			if wake > 0 {
				time.Sleep(min(wake, 20*time.Millisecond))
			}
		}
		return time.Since(began), nil
	}
	fmt.Printf("bulk moves of %d\n\n", n)
	t := table()
	fmt.Fprintln(t, "what\ttook\ta second\tcalls\tCPU a call\tp99\tlongest\tover 5 ms\tlongest by the clock")
	line := func(what string, took time.Duration) error {
		longest, err := e.slowest()
		if err != nil {
			return err
		}
		slices.Sort(calls)
		var sum time.Duration
		above := 0
		for _, c := range calls {
			sum += c
			if c > 5*time.Millisecond {
				above++
			}
		}
		last := len(calls) - 1
		us := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
		fmt.Fprintf(t, "%s\t%v\t%.0f\t%d\t%v\t%v\t%v\t%d\t%v\n", what, took.Round(time.Millisecond), float64(n)/took.Seconds(),
			len(calls), us(sum/time.Duration(len(calls))), us(calls[last*99/100]), us(calls[last]), above, longest)
		return nil
	}
	reset := func() error {
		calls = nil
		return e.reset()
	}
	if err := reset(); err != nil {
		return err
	}
	c.Capacity.Active = int64(n) + 1
	if err := configure(); err != nil {
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
	if err := configure(); err != nil {
		return err
	}
	if took, err = until("expired", func(s room.Summary) bool { return s.Active == 0 }); err != nil {
		return err
	}
	if err := line("sessions over, idle cut to 1 s", took); err != nil {
		return err
	}
	c.Session.Idle, c.Capacity.Active = room.Duration(time.Hour), 1
	if err := configure(); err != nil {
		return err
	}
	if err := fill(s, "bench", n+1); err != nil {
		return err
	}
	if err := reset(); err != nil {
		return err
	}
	c.Queue.Grace = room.Duration(time.Second)
	if err := configure(); err != nil {
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
	if err := configure(); err != nil {
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
	if err := configure(); err != nil {
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

// slowest is the longest call since reset.
func (e *env) slowest() (longest time.Duration, err error) {
	list, err := e.do("SLOWLOG", "GET", "1024").ToArray()
	if err != nil {
		return 0, err
	}
	for i := range list {
		entry, err := list[i].ToArray()
		if err != nil {
			return 0, err
		}
		us, err := entry[2].AsInt64()
		if err != nil {
			return 0, err
		}
		longest = max(longest, time.Duration(us)*time.Microsecond)
	}
	return longest, nil
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
