package room_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

// counting is a store that counts commands and can be made to fail.
type counting struct {
	room.Store
	mu   sync.Mutex
	ops  map[room.Op]int
	fail atomic.Pointer[error]
}

func (c *counting) Do(ctx context.Context, id string, cmd *room.Command) (room.Result, error) {
	c.mu.Lock()
	c.ops[cmd.Op]++
	c.mu.Unlock()
	if err := c.fail.Load(); err != nil {
		return room.Result{}, *err
	}
	return c.Store.Do(ctx, id, cmd)
}

func (c *counting) count(op room.Op) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ops[op]
}

// house is a room on the memory engine under synctest's clock.
func house(t *testing.T, c room.Config, opts room.Options) (*room.Room, *counting) {
	e, err := memory.Open(t.TempDir(), memory.Options{NoSync: true, Now: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	s := &counting{Store: e, ops: map[room.Op]int{}}
	rs, err := room.Open(t.Context(), s, opts)
	if err != nil {
		t.Fatal(err)
	}
	r, err := rs.Configure(t.Context(), c, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		rs.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, s
}

func small(active int64) room.Config {
	c := room.DefaultConfig("premiere")
	c.Capacity.Active = active
	return c
}

func request(n int) (r [16]byte) { copy(r[:], fmt.Sprintf("request-%07d", n+1)); return }

func enter(t *testing.T, r *room.Room, n int) room.Visit {
	t.Helper()
	v, err := r.Enter(t.Context(), room.Ref{}, request(n))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestRefreshKeepsPlace(t *testing.T) { // cases/room 3
	synctest.Test(t, func(t *testing.T) {
		r, _ := house(t, small(1), room.Options{})
		enter(t, r, 0)
		first := enter(t, r, 1)
		enter(t, r, 2)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			again, err := r.Enter(t.Context(), first.Ref, [16]byte{})
			if err != nil || again.Ref != first.Ref || again.Place != 1 || again.Created {
				t.Fatalf("%+v %v", again, err)
			}
		}
	})
}

func TestPollingIsASignOfLife(t *testing.T) { // cases/room 18
	synctest.Test(t, func(t *testing.T) {
		c := small(1)
		c.Queue.Grace, c.Session.Claim, c.Session.Idle = room.Duration(30*time.Second), 0, room.Duration(time.Hour)
		c.Session.Max = room.Duration(time.Hour)
		r, s := house(t, c, room.Options{})
		enter(t, r, 0)
		polls, pings, silent := enter(t, r, 1), enter(t, r, 2), enter(t, r, 3)
		for range 30 {
			time.Sleep(10 * time.Second)
			if v, err := r.Status(t.Context(), polls.Ref); err != nil || v.Place != 1 {
				t.Fatalf("%+v %v", v, err)
			}
			r.Heard(pings.Ref)
		}
		if v, err := r.Status(t.Context(), pings.Ref); err != nil || v.Place != 2 {
			t.Errorf("pinged: %+v %v", v, err)
		}
		if v, err := r.Status(t.Context(), silent.Ref); !errors.Is(err, room.ErrEnded) || v.Reason != room.ReasonAbandoned {
			t.Errorf("silent: %+v %v", v, err)
		}
		if n := s.count(room.OpHeard); n > 31 {
			t.Errorf("30 pings cost %d writes", n)
		}
	})
}

func TestUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(1)
		c.Session.Idle, c.Session.Max, c.Queue.Grace = room.Duration(time.Minute), room.Duration(10*time.Minute), room.Duration(time.Hour)
		r, s := house(t, c, room.Options{})
		in, next := enter(t, r, 0), enter(t, r, 1)
		if _, err := r.Use(t.Context(), next.Ref); !errors.Is(err, room.ErrNotAdmitted) {
			t.Fatal(err)
		}
		before := s.count(room.OpClaim)
		for range 1000 { // within a quarter of idle: one write
			p, err := r.Use(t.Context(), in.Ref)
			if err != nil {
				t.Fatal(err)
			}
			if left := time.Until(p.TokenEnd); left <= 45*time.Second || left > time.Minute {
				t.Fatalf("token for %v", left)
			}
			p.Close()
			time.Sleep(10 * time.Millisecond)
		}
		if n := s.count(room.OpClaim) - before; n != 1 {
			t.Errorf("1000 requests in 10 s cost %d writes", n)
		}
		open, err := r.Use(t.Context(), in.Ref)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute) // an open request keeps the session …
		select {
		case <-open.Done():
			t.Fatal("the session ended under an open request")
		default:
		}
		time.Sleep(time.Minute) // … until max
		select {
		case <-open.Done():
		default:
			t.Fatal("the session outlived max")
		}
		open.Close()
		if v, err := r.Status(t.Context(), next.Ref); err != nil || v.State != room.Active {
			t.Errorf("the next one: %+v %v", v, err)
		}
		if v, err := r.Use(t.Context(), in.Ref); !errors.Is(err, room.ErrEnded) {
			t.Errorf("%v %v", v, err)
		}
	})
}

func TestUseInParallelClaimsOnce(t *testing.T) { // cases/room 5
	synctest.Test(t, func(t *testing.T) {
		r, _ := house(t, small(1), room.Options{})
		in := enter(t, r, 0)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				p, err := r.Use(t.Context(), in.Ref)
				if err != nil {
					t.Error(err)
					return
				}
				p.Close()
			})
		}
		wg.Wait()
		events, _, err := r.Log(t.Context(), room.Cursor{}, 100)
		if err != nil {
			t.Fatal(err)
		}
		claims := 0
		for _, e := range events {
			if e.Type == room.Claimed {
				claims++
			}
		}
		if claims != 1 {
			t.Errorf("%d claims", claims)
		}
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(1)
		c.Queue.Grace = room.Duration(time.Hour)
		r, _ := house(t, c, room.Options{})
		in, next := enter(t, r, 0), enter(t, r, 1)
		w := r.Watch(next.ID)
		told := func() bool {
			synctest.Wait()
			select {
			case <-w.C:
				return true
			default:
				return false
			}
		}
		if told() {
			t.Error("told of nothing")
		}
		if err := r.SetState(t.Context(), room.StatePaused, "back soon"); err != nil || !told() {
			t.Error("not told of the pause", err)
		}
		if _, err := r.Leave(t.Context(), in.Ref); err != nil || told() {
			t.Error("told of somebody else's leaving", err)
		}
		if err := r.SetState(t.Context(), room.StateOpen, ""); err != nil || !told() {
			t.Error("not told of the admission", err)
		}
		w.Stop()
		if _, err := r.Leave(t.Context(), next.Ref); err != nil || told() {
			t.Error("told after Stop", err)
		}
	})
}

// TestFailuresStayOne: whoever asks while the store fails gets an error; nobody else does.
func TestFailuresStayOne(t *testing.T) { // cases/room 21
	synctest.Test(t, func(t *testing.T) {
		r, s := house(t, small(1), room.Options{})
		v := enter(t, r, 0)
		gone := fmt.Errorf("%w: testing", room.ErrUnavailable)
		for i := range 100 {
			if i%10 == 3 {
				s.fail.Store(&gone)
			}
			_, err := r.Status(t.Context(), v.Ref)
			if (err != nil) != (i%10 == 3) || err != nil && !errors.Is(err, room.ErrUnavailable) {
				t.Fatalf("poll %d: %v", i, err)
			}
			s.fail.Store(nil)
		}
	})
}

// TestETA lets a steady crowd through and compares what was promised with what came.
func TestETA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(0)
		c.Capacity.RatePerMinute, c.Queue.Grace, c.Session.Claim = 60, room.Duration(time.Hour), 0
		r, _ := house(t, c, room.Options{})
		var last room.Visit
		for i := range 200 {
			last = enter(t, r, i)
		}
		if last.ETA != nil {
			t.Errorf("an ETA without a basis: %+v", last.ETA)
		}
		time.Sleep(60 * time.Second)
		v, err := r.Status(t.Context(), last.Ref)
		if err != nil || v.ETA == nil {
			t.Fatalf("%+v %v", v, err)
		}
		if want := v.Place; v.ETA.LowS > want || v.ETA.HighS < want || v.ETA.HighS > 2*want {
			t.Errorf("place %d at one a second: %+v", v.Place, *v.ETA)
		}
		if err := r.SetState(t.Context(), room.StatePaused, ""); err != nil {
			t.Fatal(err)
		}
		if v, _ := r.Status(t.Context(), last.Ref); v.ETA != nil || v.RoomState != "paused" {
			t.Errorf("an ETA in a pause: %+v", v)
		}
	})
}

func TestNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := house(t, small(1), room.Options{})
		for i := range 1000 {
			enter(t, r, i)
		}
		n := r.Now()
		if n.Waiting != 999 || n.Active != 1 || n.LastSeq != 1000 || n.RoomState != "open" {
			t.Errorf("%+v", n)
		}
		place, ok := room.SketchPlace(n.Sketch, 500)
		if !ok || place < 499 || place > 499*106/100 {
			t.Errorf("place of pos 500 by the sketch: %d %v", place, ok)
		}
	})
}

func TestDeletedRoomTellsItsWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := house(t, small(1), room.Options{})
		w := r.Watch(room.ID{1})
		if err := s.Delete(t.Context(), "premiere", true); err != nil {
			t.Fatal(err)
		}
		<-r.Gone()
		if _, open := <-w.C; open {
			t.Error("the watch goes on")
		}
		if _, err := r.Enter(t.Context(), room.Ref{}, [16]byte{}); !errors.Is(err, room.ErrNotFound) {
			t.Error(err)
		}
	})
}

// Deleting a room and making it again, at once and over and over, while others ask for it: the
// name always leads to a room that lives.
func TestDeleteAndMakeAgain(t *testing.T) {
	e, err := memory.Open(t.TempDir(), memory.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	rs, err := room.Open(t.Context(), e, room.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r, err := rs.Get(t.Context(), "premiere"); err == nil {
					_, _ = r.Enter(t.Context(), room.Ref{}, [16]byte{})
				} else if !errors.Is(err, room.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	var seq, epoch uint64
	for range 50 {
		r, err := rs.Configure(t.Context(), small(1), 0)
		if err != nil {
			t.Fatal(err)
		}
		v, err := r.Enter(t.Context(), room.Ref{}, [16]byte{})
		if err != nil || v.Seq <= seq {
			t.Fatalf("seq %d after %d: %v", v.Seq, seq, err)
		}
		if head := r.Head(); head.Epoch <= epoch {
			t.Fatalf("epoch %d after %d", head.Epoch, epoch)
		} else {
			seq, epoch = v.Seq, head.Epoch
		}
		if err := rs.Delete(t.Context(), "premiere", true); err != nil {
			t.Fatal(err)
		}
		select {
		case <-r.Gone():
		default:
			t.Fatal("deleted, and its watchers do not know")
		}
	}
	close(stop)
	wg.Wait()
}
