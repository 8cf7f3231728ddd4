package dynamodb_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/dynamodb"
	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/lease/leasetest"
)

// emulator is one dynalite for all tests; each has tables of its own.
var emulator = sync.OnceValues(func() (*faultproxy.Emulator, error) { return faultproxy.Start("dynalite") })

var tables atomic.Int32

func newProxy(t *testing.T) *faultproxy.Proxy {
	t.Helper()
	emu, err := emulator()
	if errors.Is(err, faultproxy.ErrMissing) && os.Getenv("USHER_TEST_ALL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := faultproxy.New(emu.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	return p
}

// space makes a space of leases behind the proxy.
func space(t *testing.T, p *faultproxy.Proxy) (a, b *dynamodb.Leases) {
	t.Helper()
	client, err := dynamodb.Client(t.Context(), dynamodb.Settings{Region: "eu-west-1", Endpoint: p.URL})
	if err != nil {
		t.Fatal(err)
	}
	table := fmt.Sprint("leases-", tables.Add(1))
	made, err := dynamodb.Create(t.Context(), client, table, dynamodb.CreateOptions{})
	if err != nil || len(made) != 2 {
		t.Fatalf("made %v: %v", made, err)
	}
	return dynamodb.NewLeases(client, table), dynamodb.NewLeases(client, table)
}

// hurt throttles, delays, drops, and loses the replies to what was done.
func hurt(p *faultproxy.Proxy) (stop func()) {
	p.IndexLag(200 * time.Millisecond)
	var removes []func()
	for _, r := range []faultproxy.Rule{
		{Fault: faultproxy.Throttle, Prob: 0.05},
		{Fault: faultproxy.LoseReply, Prob: 0.05},
		{Fault: faultproxy.Drop, Prob: 0.02},
		{Fault: faultproxy.Fail, Prob: 0.02},
		{Delay: 20 * time.Millisecond, Prob: 0.3},
	} {
		removes = append(removes, p.Add(r))
	}
	return func() {
		for _, remove := range removes {
			remove()
		}
		p.IndexLag(0)
	}
}

func TestLeases(t *testing.T) {
	if testing.Short() {
		t.Skip("starts dynalite")
	}
	leasetest.TestStore(t, func(t *testing.T) leasetest.Fixture {
		p := newProxy(t)
		a, b := space(t, p)
		return leasetest.Fixture{
			Store: a, Peer: b, Pace: 2,
			Restart: func(*testing.T) lease.Store { return b },
			Hurt: func(t *testing.T) func() {
				stop := hurt(p)
				return func() {
					stop()
					h := p.Hurt()
					t.Logf("%d throttled, %d replies lost, %d dropped, %d failed", h[faultproxy.Throttle], h[faultproxy.LoseReply], h[faultproxy.Drop], h[faultproxy.Fail])
				}
			},
		}
	})
}

// TestStaleIndex: what an index says is never believed.
func TestStaleIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("starts dynalite")
	}
	p := newProxy(t)
	s, _ := space(t, p)
	ctx := t.Context()
	a, b := lease.Owner{Worker: "a", Generation: 1}, lease.Owner{Worker: "b", Generation: 1}
	row, err := s.Put(ctx, lease.Put{ID: "x", Desired: lease.Started})
	if err != nil {
		t.Fatal(err)
	}
	orphans := func() []lease.Brief {
		t.Helper()
		list, err := s.Orphans(ctx, []lease.Owner{a, b}, 10)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	deadline := time.Now().Add(time.Minute)
	for len(orphans()) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the index never shows the row")
		}
		time.Sleep(5 * time.Millisecond)
	}
	p.FreezeIndex()
	if got, err := s.Take(ctx, lease.Take{ID: "x", Fence: row.Fence, To: a}); err != nil || !got.OK {
		t.Fatal(got, err)
	}
	old := orphans()
	if len(old) != 1 || old[0].Owner != (lease.Owner{}) {
		t.Fatalf("the frozen index says %+v", old)
	}
	got, err := s.Take(ctx, lease.Take{ID: "x", From: old[0].Owner, Fence: old[0].Fence, To: b})
	if err != nil || got.OK || got.Row.Owner != a {
		t.Fatalf("taken by what an old index said: %+v %v", got, err)
	}
	p.ThawIndex()
	for len(orphans()) != 0 {
		if time.Now().After(deadline) {
			t.Fatal("the index never shows the owner")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestCreate(t *testing.T) {
	if testing.Short() {
		t.Skip("starts dynalite")
	}
	p := newProxy(t)
	client, err := dynamodb.Client(t.Context(), dynamodb.Settings{Region: "eu-west-1", Endpoint: p.URL})
	if err != nil {
		t.Fatal(err)
	}
	s := dynamodb.NewLeases(client, "nothing-here")
	if err := s.Health(); !errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), "usher dynamodb create --table nothing-here") {
		t.Errorf("without tables: %v", err)
	}
	for i, want := range []int{2, 0} {
		made, err := dynamodb.Create(t.Context(), client, "made", dynamodb.CreateOptions{Read: 5, Write: 5})
		if err != nil || len(made) != want {
			t.Errorf("call %d made %v: %v", i, made, err)
		}
	}
	if err := dynamodb.NewLeases(client, "made").Health(); err != nil {
		t.Error(err)
	}
	// the workers' table of one has no index, so it cannot be another's table of resources
	if _, err := dynamodb.Create(t.Context(), client, "made-workers", dynamodb.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "desired_state-lease_owner") {
		t.Errorf("a table of another make: %v", err)
	}
	if _, err := dynamodb.Create(t.Context(), client, "half", dynamodb.CreateOptions{Read: 5}); err == nil {
		t.Error("read capacity alone was taken")
	}
}

// TestFencesOfATableMadeAnew: whoever was shown a fence refuses smaller ones, also when the tables are others by now.
func TestFencesOfATableMadeAnew(t *testing.T) {
	if testing.Short() {
		t.Skip("starts dynalite")
	}
	last := uint64(0)
	for range 2 {
		s, _ := space(t, newProxy(t)) // a table of its own, with nothing in it
		for range 2 {
			row, err := s.Put(t.Context(), lease.Put{ID: "x", Desired: lease.Started})
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Take(t.Context(), lease.Take{ID: "x", From: row.Owner, Fence: row.Fence, To: lease.Owner{Worker: "a", Generation: 1}})
			if err != nil || !got.OK || got.Row.Fence <= last {
				t.Fatalf("%+v %v, the last fence was %d", got, err, last)
			}
			last = got.Row.Fence
		}
	}
}

// TestCounts: what a take-over and a beat cost is counted.
func TestCounts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts dynalite")
	}
	p := newProxy(t)
	s, _ := space(t, p)
	ctx := t.Context()
	j, err := s.Join(ctx, lease.Join{Worker: "w", Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	before := p.Requests()["UpdateItem"]
	for n := range 3 {
		if ok, err := s.Beat(ctx, lease.Beat{Owner: j.Owner, Beat: uint64(n + 1)}); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	c := s.Counts()["Beat"]
	if c.Requests != 3 || c.WriteUnits != 3 || p.Requests()["UpdateItem"]-before != 3 {
		t.Errorf("three beats: %+v, %v at the proxy", c, p.Requests())
	}
	if c := s.Counts()["Join"]; c.Requests != 2 || c.ReadUnits != 1 || c.WriteUnits != 1 {
		t.Errorf("a join: %+v", c)
	}
}
