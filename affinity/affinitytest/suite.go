// Package affinitytest is the conformance suite of affinity's Store. Every engine runs it.
package affinitytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
)

// Fixture is one empty store.
type Fixture struct {
	Store affinity.Store
	// Advance lets the store's time pass; an engine with a clock of its own sleeps.
	Advance func(time.Duration)
	// Forget makes the store lose all it has, as FLUSHALL does; its clock goes on.
	Forget func()
}

// TestStore runs the suite. open is called for each test.
func TestStore(t *testing.T, open func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*testing.T, *client){
		"OneOwner":                oneOwner,
		"LostClaimIsTheSame":      lostClaim,
		"LateClear":               lateClear,
		"DeleteAndCreateAtOnce":   deleteAndCreate,
		"RowsOfTheVanished":       vanished,
		"LaterStartTakesOver":     laterStart,
		"BuildingHasADeadline":    buildingDeadline,
		"RefreshEachByItself":     refreshEach,
		"Forgotten":               forgotten,
		"Instances":               instances,
		"BadRequests":             badRequests,
		"AnyBytes":                anyBytes,
		"AsTheMachine":            asTheMachine,
		"ManyAtOnce":              linearizable,
		"LargeBatch":              largeBatch,
		"AnEndedContextIsNoClaim": endedContext,
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t)
			test(t, &client{t: t, f: f, space: "test"})
		})
	}
}

type client struct {
	t     *testing.T
	f     Fixture
	space string
	n     int
}

// Nothing that a slow machine may outlast is waited for: times are long, and short only when they are to end.
const long, moment = time.Minute, 5 * time.Millisecond

func who(n uint64) affinity.Identity {
	return affinity.Identity{Instance: fmt.Sprint("i-", n), Epoch: 10}
}

func (c *client) claim(key string, o affinity.Identity, token string, build time.Duration) affinity.Claimed {
	c.t.Helper()
	got, err := c.f.Store.Claim(c.t.Context(), affinity.Claim{Space: c.space, Key: key, Owner: o, Addr: o.Instance + ":80", Token: token, Build: build})
	if err != nil {
		c.t.Fatal(err)
	}
	return got
}

// mine claims a free key.
func (c *client) mine(key string, o affinity.Identity) affinity.Row {
	c.t.Helper()
	c.n++
	got := c.claim(key, o, fmt.Sprint("mine", c.n), long)
	if got.Verdict != affinity.Yours || got.Row.Owner != o || got.Row.State != affinity.Building || got.Row.Generation == 0 || got.Row.Addr != o.Instance+":80" {
		c.t.Fatalf("claim %q by %v: %+v", key, o, got)
	}
	return got.Row
}

func (c *client) refresh(o affinity.Identity, ttl time.Duration, items ...affinity.Item) []bool {
	c.t.Helper()
	got, err := c.f.Store.Refresh(c.t.Context(), affinity.Refresh{Space: c.space, Owner: o, TTL: ttl, Items: items})
	if err != nil || len(got.Held) != len(items) {
		c.t.Fatalf("refresh: %+v, %v", got, err)
	}
	return got.Held
}

func (c *client) clear(key string, o affinity.Identity, gen uint64) bool {
	c.t.Helper()
	got, err := c.f.Store.Clear(c.t.Context(), affinity.Clear{Space: c.space, Key: key, Owner: o, Generation: gen})
	if err != nil {
		c.t.Fatal(err)
	}
	return got.Cleared
}

func (c *client) get(key string) affinity.Row {
	c.t.Helper()
	row, err := c.f.Store.Get(c.t.Context(), c.space, key)
	if err != nil {
		c.t.Fatal(err)
	}
	return row
}

func (c *client) want(key string, state affinity.State, gen uint64) {
	c.t.Helper()
	if row := c.get(key); row.State != state || row.Generation != gen {
		c.t.Fatalf("%q is %+v, want %v of generation %d", key, row, state, gen)
	}
}

func oneOwner(t *testing.T, c *client) { // cases/affinity 4
	const n = 100
	got := make([]affinity.Claimed, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { got[i] = c.claim("k", who(uint64(i)), fmt.Sprint(i), long) })
	}
	wg.Wait()
	owner, yours := got[0].Row.Owner, 0
	for i, g := range got {
		if g.Row.Owner != owner || g.Row.Generation != got[0].Row.Generation {
			t.Fatalf("%d learned %+v, others %+v", i, g.Row, got[0].Row)
		}
		if g.Verdict == affinity.Yours {
			yours++
			if g.Row.Owner != who(uint64(i)) {
				t.Fatalf("%d got what is %v's", i, g.Row.Owner)
			}
		}
	}
	if yours != 1 {
		t.Fatalf("%d own it", yours)
	}
}

func lostClaim(t *testing.T, c *client) { // cases/affinity 4
	first := c.claim("k", who(1), "token", long)
	again := c.claim("k", who(1), "token", long)
	if again.Verdict != affinity.Yours || again.Row.Generation != first.Row.Generation {
		t.Fatalf("%+v, then %+v", first, again)
	}
	if got := c.claim("k", who(2), "token", long); got.Verdict != affinity.Theirs {
		t.Fatalf("another's token is not mine: %+v", got)
	}
	if got := c.claim("k", who(1), "other", long); got.Verdict != affinity.Theirs || got.Row.Owner != who(1) {
		t.Fatalf("another claim of the owner: %+v", got)
	}
	if !c.clear("k", who(1), first.Row.Generation) {
		t.Fatal("not cleared")
	}
	if got := c.claim("k", who(1), "token", long); got.Verdict != affinity.Spent || got.Row.State != affinity.None {
		t.Fatalf("a claim that comes late: %+v", got)
	}
	c.mine("k", who(1))
}

func lateClear(t *testing.T, c *client) { // cases/affinity 1
	old := c.mine("k", who(1))
	for range 2 {
		if !c.clear("k", who(1), old.Generation) {
			t.Fatal("a clear may be repeated")
		}
	}
	row := c.mine("k", who(2))
	for _, o := range []affinity.Identity{who(1), who(2), {Instance: who(2).Instance, Epoch: 9}} {
		if c.clear("k", o, old.Generation) {
			t.Fatalf("%v cleared with an old generation", o)
		}
	}
	if c.clear("k", who(1), row.Generation) || c.clear("k", affinity.Identity{Instance: who(2).Instance, Epoch: 11}, row.Generation) {
		t.Fatal("cleared by another")
	}
	c.want("k", affinity.Building, row.Generation)
}

func deleteAndCreate(t *testing.T, c *client) { // cases/affinity 2
	var last uint64
	for range 50 {
		row := c.mine("k", who(1))
		if row.Generation <= last {
			t.Fatalf("generation %d after %d", row.Generation, last)
		}
		if last > 0 && c.clear("k", who(1), last) {
			t.Fatal("the old clean-up killed the new session")
		}
		last = row.Generation
		c.clear("k", who(1), last)
	}
}

func vanished(t *testing.T, c *client) { // cases/affinity 3
	row := c.mine("a", who(1))
	if !c.refresh(who(1), moment, affinity.Item{Key: "a", Generation: row.Generation, Ready: true, Session: "s"})[0] {
		t.Fatal("not held")
	}
	c.f.Advance(2 * moment)
	c.want("a", affinity.None, 0)
	if c.refresh(who(1), long, affinity.Item{Key: "a", Generation: row.Generation})[0] {
		t.Fatal("an expired row was revived")
	}
	c.mine("a", who(2))
	// Whoever finds the owner dead evicts it, without the owner.
	row = c.mine("b", who(1))
	if !c.clear("b", row.Owner, row.Generation) {
		t.Fatal("not evicted")
	}
	c.mine("b", who(2))
}

func laterStart(t *testing.T, c *client) {
	row := c.mine("k", who(1))
	late := affinity.Identity{Instance: who(1).Instance, Epoch: 11}
	if got := c.claim("k", late, "x", long); got.Verdict != affinity.Yours || got.Row.Generation <= row.Generation {
		t.Fatalf("%+v", got)
	}
	if c.refresh(who(1), long, affinity.Item{Key: "k", Generation: row.Generation})[0] {
		t.Fatal("the earlier start still holds it")
	}
	if got := c.claim("k", who(1), "y", long); got.Verdict != affinity.Theirs {
		t.Fatalf("an earlier start took over: %+v", got)
	}
}

func buildingDeadline(t *testing.T, c *client) {
	got := c.claim("k", who(1), "t", moment)
	gen := got.Row.Generation
	c.f.Advance(2 * moment)
	if c.refresh(who(1), long, affinity.Item{Key: "k", Generation: gen, Ready: true})[0] {
		t.Fatal("ready after the deadline")
	}
	row := c.mine("k", who(2))
	if row.Generation <= gen {
		t.Fatal("the generation does not grow")
	}
	// Refreshing does not make it longer, being ready does.
	got = c.claim("l", who(1), "t", 40*moment)
	gen = got.Row.Generation
	c.refresh(who(1), long, affinity.Item{Key: "l", Generation: gen})
	if row := c.get("l"); row.State == affinity.Building && row.Left > 40*moment {
		t.Fatalf("%+v", row)
	}
	gen = c.mine("m", who(1)).Generation
	if !c.refresh(who(1), 10*long, affinity.Item{Key: "m", Generation: gen, Ready: true, Session: "s-1"})[0] {
		t.Fatal("not held")
	}
	if row := c.get("m"); row.State != affinity.Ready || row.Session != "s-1" || row.Left < 9*long || row.Generation != gen {
		t.Fatalf("%+v", row)
	}
}

func refreshEach(t *testing.T, c *client) {
	var items []affinity.Item
	for i := range 20 {
		o := who(uint64(i % 2))
		items = append(items, affinity.Item{Key: fmt.Sprint("k", i), Generation: c.mine(fmt.Sprint("k", i), o).Generation, Ready: true})
	}
	items = append(items, affinity.Item{Key: "nobody", Generation: 1}, affinity.Item{Key: "k0", Generation: items[0].Generation + 1})
	for i, held := range c.refresh(who(0), long, items...) {
		if want := i < 20 && i%2 == 0; held != want {
			t.Errorf("item %d: held %v", i, held)
		}
	}
	if len(c.refresh(who(0), long)) != 0 {
		t.Error("nothing was asked")
	}
}

func forgotten(t *testing.T, c *client) {
	row := c.mine("k", who(1))
	c.f.Forget()
	c.want("k", affinity.None, 0)
	if c.refresh(who(1), long, affinity.Item{Key: "k", Generation: row.Generation, Ready: true})[0] || c.clear("k", who(1), row.Generation) {
		t.Fatal("it was not forgotten")
	}
	if again := c.mine("k", who(2)); again.Generation <= row.Generation {
		t.Fatalf("generation %d after %d", again.Generation, row.Generation)
	}
}

func badRequests(t *testing.T, c *client) {
	good := affinity.Claim{Space: c.space, Key: "k", Owner: who(1), Token: "t", Build: long}
	for field, spoil := range map[string]func(*affinity.Claim){
		"space":    func(c *affinity.Claim) { c.Space = "a{b}" },
		"key":      func(c *affinity.Claim) { c.Key = strings.Repeat("x", affinity.MaxKey+1) },
		"UTF-8":    func(c *affinity.Claim) { c.Key = "\xff" },
		"instance": func(c *affinity.Claim) { c.Owner.Instance = "a b" },
		"epoch":    func(c *affinity.Claim) { c.Owner.Epoch = 0 },
		"addr":     func(c *affinity.Claim) { c.Addr = strings.Repeat("x", 513) },
		"token":    func(c *affinity.Claim) { c.Token = "" },
		"build":    func(c *affinity.Claim) { c.Build = 0 },
	} {
		bad := good
		spoil(&bad)
		if _, err := c.f.Store.Claim(t.Context(), bad); !errors.Is(err, affinity.ErrBadRequest) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := c.f.Store.Get(t.Context(), c.space, ""); !errors.Is(err, affinity.ErrBadRequest) {
		t.Error(err)
	}
	c.want("k", affinity.None, 0)
}

func anyBytes(_ *testing.T, c *client) {
	for _, key := range []string{"a b", "a:b", "{x}", "\x00\x7f\n", "..", "a/b?c=d%2F", "usher:affinity:{test/1}", "ключ", strings.Repeat("k", 250)} {
		row := c.mine(key, who(1))
		c.refresh(who(1), long, affinity.Item{Key: key, Generation: row.Generation, Ready: true, Session: "\x00" + key})
		if got := c.get(key); got.Session != "\x00"+key {
			c.t.Errorf("%q: %+v", key, got)
		}
		c.clear(key, who(1), row.Generation)
	}
}

func largeBatch(t *testing.T, c *client) {
	var items []affinity.Item
	for i := range 2000 {
		key := fmt.Sprint("key-", i)
		items = append(items, affinity.Item{Key: key, Generation: c.mine(key, who(1)).Generation, Ready: true, Session: key})
	}
	for i, held := range c.refresh(who(1), long, items...) {
		if !held {
			t.Fatalf("%d is not held", i)
		}
	}
	if row := c.get("key-1999"); row.Session != "key-1999" {
		t.Errorf("%+v", row)
	}
}

func endedContext(t *testing.T, c *client) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.f.Store.Claim(ctx, affinity.Claim{Space: c.space, Key: "k", Owner: who(1), Token: "t", Build: long}); !errors.Is(err, affinity.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// asTheMachine runs random commands and replays them on the machine, at the times that the engine says.
func asTheMachine(t *testing.T, c *client) {
	rng := rand.New(rand.NewPCG(3, uint64(time.Now().UnixNano())))
	var m affinity.Space
	gens := map[string][]uint64{"a": {1}, "b": {1}, "c": {1}}
	for step := range 600 {
		key := string(rune('a' + rng.IntN(3)))
		o := affinity.Identity{Instance: string(rune('x' + rng.IntN(2))), Epoch: uint64(1 + rng.IntN(2))}
		gen := gens[key][max(0, len(gens[key])-1-rng.IntN(2))]
		ctx := t.Context()
		var got, want any
		var err error
		switch rng.IntN(6) {
		case 0, 1:
			cmd := affinity.Claim{Space: c.space, Key: key, Owner: o, Addr: "addr", Token: fmt.Sprint(rng.IntN(8)), Build: []time.Duration{moment, long}[rng.IntN(2)]}
			var out affinity.Claimed
			out, err = c.f.Store.Claim(ctx, cmd)
			got, want = out, m.Claim(cmd, out.Row.At.UnixMicro())
			if out.Verdict == affinity.Yours {
				gens[key] = append(gens[key], out.Row.Generation)
			}
		case 2, 3:
			cmd := affinity.Refresh{Space: c.space, Owner: o, TTL: []time.Duration{moment, long}[rng.IntN(2)]}
			cmd.Items = append(cmd.Items, affinity.Item{Key: key, Generation: gen, Ready: rng.IntN(2) == 0, Session: fmt.Sprint(step)})
			var out affinity.Refreshed
			out, err = c.f.Store.Refresh(ctx, cmd)
			got, want = out, m.Refresh(cmd, out.At.UnixMicro())
		case 4:
			cmd := affinity.Clear{Space: c.space, Key: key, Owner: o, Generation: gen}
			var out affinity.Cleared
			out, err = c.f.Store.Clear(ctx, cmd)
			got, want = out, m.Clear(cmd, out.At.UnixMicro())
		case 5:
			if rng.IntN(4) == 0 {
				c.f.Advance(moment)
			}
			var out affinity.Row
			out, err = c.f.Store.Get(ctx, c.space, key)
			got, want = out, m.Get(key, out.At.UnixMicro())
		}
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("step %d, %v on %q\n got %+v\nwant %+v", step, o, key, got, want)
		}
	}
}
