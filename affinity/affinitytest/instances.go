package affinitytest

import (
	"reflect"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
)

func instances(t *testing.T, c *client) {
	announce := func(a affinity.Announce) affinity.Announced {
		t.Helper()
		a.Space = c.space
		got, err := c.f.Store.Announce(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	list := func(want ...affinity.Instance) {
		t.Helper()
		got, err := c.f.Store.Instances(t.Context(), c.space)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if got[i].Left <= 0 {
				t.Errorf("%+v is dead", got[i])
			}
			got[i].Left = 0
		}
		if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
	drain := func(id string, on, want bool) {
		t.Helper()
		if got, err := c.f.Store.Drain(t.Context(), affinity.Drain{Space: c.space, Instance: id, On: on}); err != nil || got != want {
			t.Fatalf("drain %s: %v, %v", id, got, err)
		}
	}
	list()
	a := affinity.Announce{Owner: who(1), Addr: "http://10.0.0.1:80/a b", Sessions: 3, Max: 7, TTL: long}
	announce(a)
	announce(affinity.Announce{Owner: who(2), TTL: long})
	one := affinity.Instance{Owner: who(1), Addr: a.Addr, Sessions: 3, Max: 7}
	two := affinity.Instance{Owner: who(2)}
	list(one, two)
	drain(who(1).Instance, true, true)
	drain("nobody", true, false)
	one.Draining = true
	list(one, two)
	if !announce(a).Draining {
		t.Fatal("it is not told to drain")
	}
	if known, err := c.f.Store.Drain(t.Context(), affinity.Drain{Space: c.space, Instance: who(1).Instance, On: true, For: 90 * time.Second}); err != nil || !known {
		t.Fatal(known, err)
	}
	list(one, two)
	if got := announce(a); !got.Draining || got.DrainFor != 90*time.Second {
		t.Fatalf("%+v", got)
	}
	drain(who(1).Instance, false, true)
	if got := announce(a); got.Draining || got.DrainFor != 0 {
		t.Fatalf("still told to drain: %+v", got)
	}
	drain(who(1).Instance, true, true)
	old := a
	a.Owner.Epoch, a.Sessions = 11, 0
	if got := announce(a); got.Superseded || got.Draining { // a new start is not asked to drain
		t.Fatalf("%+v", got)
	}
	if !announce(old).Superseded {
		t.Fatal("the earlier start is not told")
	}
	old.TTL = 0
	announce(old) // and its departure is not the later one's
	list(affinity.Instance{Owner: a.Owner, Addr: a.Addr, Max: 7}, two)
	a.TTL = 0
	announce(a)
	announce(affinity.Announce{Owner: who(2), TTL: moment})
	c.f.Advance(2 * moment)
	list()
}
