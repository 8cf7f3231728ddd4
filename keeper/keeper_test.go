package keeper_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/keeper/keepertest"
	"github.com/ushergo/usher/lease"
)

func TestMessagesAreStoredOnceThoughConnectionsDrop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 200, Drop: 300 * time.Millisecond})
	w.put("a", spec(w.url+"/a"))
	w.put("b", spec(w.url+"/b"))
	k := w.start("w1", keeper.Options{}, lease.Options{})
	until(t, "several drops", func() bool { return k.Stats().Losses >= 6 && w.sink.Len("a") > 100 && w.sink.Len("b") > 100 })
	w.settle("a", "b")
	until(t, "the cursor is written", func() bool { return w.row("a").Cursor == strconv.Itoa(w.sink.Len("a")) })
}

func TestCrashIsTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 200})
	w.put("a", spec(w.url+"/a"))
	one := w.start("w1", keeper.Options{}, lease.Options{})
	until(t, "the first holds it", func() bool { return w.sink.Len("a") > 20 })
	fence := w.row("a").Fence
	two := w.start("w2", keeper.Options{}, lease.Options{})
	one.kill()
	until(t, "the second holds it", func() bool { return two.Stats().Open == 1 && two.Stats().Stored > 20 })
	if got := w.row("a").Fence; got <= fence {
		t.Errorf("fence %d after %d", got, fence)
	}
	w.settle("a")
	if f := w.sink.Fence("a"); f != w.row("a").Fence {
		t.Errorf("the sink knows fence %d, the row has %d", f, w.row("a").Fence)
	}
}

func TestStopHandsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 100})
	var ids []string
	for i := range 20 {
		id := fmt.Sprintf("s%02d", i)
		ids = append(ids, id)
		w.put(id, spec(w.url+"/"+id))
	}
	deaths := &deaths{}
	o := lease.Options{Lease: 4 * time.Second, Observer: deaths}
	one := w.start("w1", keeper.Options{}, o)
	until(t, "all are open", func() bool { return one.Stats().Open == 20 })
	two := w.start("w2", keeper.Options{}, o)
	until(t, "shared", func() bool { return one.Stats().Open == 10 && two.Stats().Open == 10 })
	one.stop()
	until(t, "all are at the other", func() bool { return two.Stats().Open == 20 })
	w.settle(ids...)
	if n := deaths.n.Load(); n != 0 {
		t.Errorf("%d workers had to be found dead, and all said good-bye", n)
	}
	if n := w.sink.Refused(); n != 0 {
		t.Errorf("%d batches were refused by fence at a graceful stop", n)
	}
}

// deaths counts workers that were found dead.
type deaths struct{ n atomic.Int64 }

func (*deaths) Beaten(time.Duration, error) {}
func (*deaths) Taken(string, lease.Owner)   {}
func (*deaths) Ended(string, error)         {}
func (d *deaths) Died(lease.Owner)          { d.n.Add(1) }

func TestDesiredStateStopsAndStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 100})
	s := spec(w.url + "/a")
	w.put("a", s)
	k := w.start("w1", keeper.Options{}, lease.Options{})
	until(t, "open", func() bool { return k.Stats().Open == 1 })
	s.Desired = lease.Stopped
	w.put("a", s)
	until(t, "closed", func() bool { return w.up.Open() == 0 && len(k.Status()) == 0 })
	if o := w.row("a").Owner; o != (lease.Owner{}) {
		until(t, "released", func() bool { return w.row("a").Owner == (lease.Owner{}) })
	}
	s.Desired = lease.Started
	w.put("a", s)
	until(t, "open again", func() bool { return w.up.Open() == 1 })
	w.settle("a")
}

func TestChangedSpecIsDialledAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 100})
	w.put("a", spec(w.url+"/a"))
	k := w.start("w1", keeper.Options{}, lease.Options{})
	until(t, "some", func() bool { return w.sink.Len("a") > 3 })
	s := spec(w.url + "/a?v=2")
	w.put("a", s)
	until(t, "dialled again", func() bool { return k.Stats().Dials >= 2 && k.Stats().Open == 1 })
	w.settle("a")
}

func TestBackPressureReachesTheSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 50_000, Size: 1000})
	w.put("a", spec(w.url+"/a"))
	var open atomic.Bool
	w.sink.Fault(func(context.Context, []keeper.Batch) error {
		if !open.Load() {
			return errSink
		}
		return nil
	})
	k := w.start("w1", keeper.Options{Pending: 64, PendingBytes: 32 << 10, Ping: 50 * time.Millisecond, Silence: 500 * time.Millisecond}, lease.Options{})
	until(t, "blocked, and says why", func() bool {
		st := k.Status()
		return len(st) == 1 && st[0].Blocked && strings.Contains(st[0].Err, errSink.Error())
	})
	if st := k.Status()[0]; st.Pending > 64 || st.Pending < 20 {
		t.Fatalf("status %+v", st)
	}
	before := k.Stats().Received
	until(t, "the upstream is asked for signs of life meanwhile", func() bool { return w.up.Pings() > 0 })
	if got := k.Stats().Received; got > before+64 {
		t.Errorf("%d messages were read while the sink was broken", got-before)
	}
	if n := w.sink.Len("a"); n != 0 {
		t.Errorf("%d stored by a broken sink", n)
	}
	open.Store(true)
	w.up.End()
	w.settle("a")
	if lag := k.Stats().Lag; lag != 0 {
		t.Errorf("lag %v with nothing pending", lag)
	}
}

func TestPoisonHoldsUpItsConnectionAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 50})
	var ids []string
	for i := range 6 {
		id := fmt.Sprintf("s%d", i)
		ids = append(ids, id)
		w.put(id, spec(w.url+"/"+id))
	}
	var healed atomic.Bool
	w.sink.Fault(func(_ context.Context, bs []keeper.Batch) error {
		for _, b := range bs {
			for _, m := range b.Messages {
				if b.Connection == "s3" && m.Seq == 5 && !healed.Load() {
					return errSink
				}
			}
		}
		return nil
	})
	w.start("w1", keeper.Options{Lanes: 1, Batch: 4}, lease.Options{})
	until(t, "the others go on", func() bool {
		for _, id := range ids {
			if id != "s3" && w.sink.Len(id) < 100 {
				return false
			}
		}
		return true
	})
	if n := w.sink.Len("s3"); n >= 100 {
		t.Fatalf("%d of the poisoned", n)
	}
	healed.Store(true)
	w.settle(ids...)
}

func TestDeafUpstreamIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 50})
	w.put("a", spec(w.url+"/a"))
	k := w.start("w1", keeper.Options{Ping: 100 * time.Millisecond, Silence: 300 * time.Millisecond}, lease.Options{})
	until(t, "some", func() bool { return w.sink.Len("a") > 3 })
	w.up.Deaf(true)
	until(t, "silence is noticed", func() bool { return k.Stats().Losses > 0 })
	w.up.Deaf(false)
	w.settle("a")
}

func TestHungSinkDoesNotHangTheStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 100})
	w.put("a", spec(w.url+"/a"))
	hung, free := make(chan struct{}, 100), make(chan struct{})
	t.Cleanup(func() { close(free) })
	w.sink.Fault(func(_ context.Context, bs []keeper.Batch) error {
		if len(bs[0].Messages) == 0 {
			return nil
		}
		hung <- struct{}{}
		<-free // whatever its context says
		return errSink
	})
	one := w.start("w1", keeper.Options{Drain: 100 * time.Millisecond}, lease.Options{})
	<-hung
	one.stop()
	until(t, "released", func() bool {
		rows, err := w.store.Workers(context.Background())
		if err != nil {
			return false
		}
		for _, r := range rows {
			if r.Worker == "w1" && !r.Dead {
				return false
			}
		}
		return true
	})
	if c := w.row("a").Cursor; c != "" {
		t.Errorf("the cursor moved to %s over what is not stored", c)
	}
	w.sink.Fault(nil)
	w.start("w2", keeper.Options{}, lease.Options{})
	w.settle("a")
}

func TestZombieIsRefusedBySinkAndUpstream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 200})
	w.put("a", spec(w.url+"/a"))
	one := w.start("w1", keeper.Options{}, lease.Options{})
	until(t, "some", func() bool { return w.sink.Len("a") > 10 })
	// Somebody else is the owner now, and the first knows nothing of it.
	old := w.row("a").Fence
	next := keeper.Batch{Connection: "a", Fence: old + 1<<40} // above all that are given out meanwhile
	if ok, err := w.sink.Store(context.Background(), []keeper.Batch{next}); err != nil || !ok[0] {
		t.Fatal(ok, err)
	}
	until(t, "the sink has refused it", func() bool { return w.sink.Refused() > 0 })
	n := w.sink.Len("a")
	until(t, "the connection is let go of", func() bool { return one.Stats().Losses > 0 || w.up.Open() == 0 || one.Stats().Open == 0 })
	if got := w.sink.Len("a"); got != n {
		t.Errorf("%d more were stored under the lower fence", got-n)
	}
}

func TestEgressIsAskedAtTheDial(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 100})
	w.put("a", spec(w.url+"/a"))
	d := dialer()
	d.Allow = nil
	k := w.start("w1", keeper.Options{Dial: d.DialContext}, lease.Options{})
	until(t, "refused", func() bool {
		st := k.Status()
		return len(st) == 1 && st[0].State == keeper.Pausing && strings.Contains(st[0].Err, "egress.allow")
	})
	if n := w.up.Open(); n != 0 {
		t.Fatal("dialled")
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	up := &keepertest.Upstream{Rate: 100, Drop: time.Second}
	w := newWorld(t, up)
	srv := httptest.NewTLSServer(up)
	t.Cleanup(func() {
		up.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	url := "wss" + strings.TrimPrefix(srv.URL, "https")
	w.put("a", spec(url+"/a"))
	strange := w.start("w1", keeper.Options{}, lease.Options{})
	until(t, "an unknown certificate is refused", func() bool {
		st := strange.Status()
		return len(st) == 1 && strings.Contains(st[0].Err, "certificate")
	})
	strange.stop()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	k := w.start("w2", keeper.Options{TLS: &tls.Config{RootCAs: roots}}, lease.Options{})
	until(t, "it drops, and goes on", func() bool { return k.Stats().Losses > 0 && w.sink.Len("a") > 50 })
	w.settle("a")
	k.stop()
}

func TestHandshakeThatHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 100})
	w.put("a", spec(frozen(t)+"/a"))
	k := w.start("w1", keeper.Options{DialTimeout: 50 * time.Millisecond}, lease.Options{})
	until(t, "given up", func() bool { return k.Stats().DialErrors > 0 })
	k.stop()
}

func TestBrokenRowIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &keepertest.Upstream{Rate: 100})
	if _, err := w.store.Put(context.Background(), lease.Put{ID: "a", Desired: lease.Started, URL: "ftp://x", Spec: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	k := w.start("w1", keeper.Options{}, lease.Options{})
	until(t, "shown", func() bool {
		st := k.Status()
		return len(st) == 1 && st[0].State == keeper.Invalid && strings.Contains(st[0].Err, "ws or wss")
	})
	w.put("a", spec(w.url+"/a"))
	until(t, "mended", func() bool { return w.sink.Len("a") > 3 })
}

func TestOptionsNameTheFault(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o    keeper.Options
		want string
	}{
		{keeper.Options{}, "sink"},
		{keeper.Options{Sink: &keepertest.Memory{}}, "dial"},
		{keeper.Options{Sink: &keepertest.Memory{}, Dial: dialer().DialContext, Ping: time.Minute, Silence: time.Minute}, "two pings"},
		{keeper.Options{Sink: &keepertest.Memory{}, Dial: dialer().DialContext, Lanes: -1}, "lanes"},
	} {
		_, err := keeper.New(c.o)
		if !errors.Is(err, keeper.ErrBadRequest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
