package chaos

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/redistest"
)

// What is done at one node stands at all, and what one does alone another takes over.
func TestNodesAct(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes; make test runs it")
	}
	w := newWorld(t, "- {id: premiere, capacity: {per_instance: 5}, instances: {source: nodes}}")
	w.redis = redistest.Start(t)
	w.engine = fmt.Sprintf("{kind: redis, addrs: ['%s'], dial_timeout: 1s}", w.redis.Addr)
	a, b, c := w.add("a", nil), w.add("b", nil), w.add("c", nil)
	room := func(n *node, id string) map[string]any {
		code, doc, err := n.api("GET", "/admin/v1/rooms/"+id, "")
		if err != nil || code != 200 {
			return nil
		}
		return doc
	}
	// within waits, and prints how long it took.
	within := func(what string, ok func() bool) {
		t.Helper()
		began := time.Now()
		w.until(what, ok)
		t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
	}
	limits := func(want float64, nodes ...*node) func() bool {
		return func() bool {
			for _, n := range nodes {
				if room(n, "premiere")["limit"] != want {
					return false
				}
			}
			return true
		}
	}
	within("the limit is that of three nodes", limits(15, a, b, c))

	code, doc, err := a.api("GET", "/admin/v1/nodes", "")
	list, _ := doc["nodes"].([]any)
	if err != nil || code != 200 || len(list) != 3 {
		t.Fatalf("%d %v %v", code, doc, err)
	}
	for i, name := range []string{"a", "b", "c"} {
		n := list[i].(map[string]any)
		if n["id"] != name || n["alive"] != true || n["self"] != (name == "a") || n["version"] == "" || n["draining"] != false {
			t.Errorf("%v", n)
		}
	}

	for range 40 { // fifteen in, the others wait
		if code, _, err := call(w.visitors.url(), "POST", "/v1/rooms/premiere/enter", ""); err != nil || code/100 != 2 {
			t.Fatal(code, err)
		}
	}
	within("all nodes know who is in and who waits", func() bool {
		for _, n := range []*node{a, b, c} {
			if doc := room(n, "premiere"); doc["active"] != 15.0 || doc["waiting"] != 25.0 {
				return false
			}
		}
		return true
	})

	c.kill()
	w.delist(c)
	within("after a kill the limit is that of two nodes", limits(10, a, b))
	c.start()
	w.enlist(c)
	within("after a start the limit is that of three again", limits(15, a, b, c))

	// A pause stops admissions everywhere; a change of the limit under it stands everywhere and lets nobody in.
	if code, _, err := a.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"paused","message":"back soon"}`); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	if code, _, err := b.api("PATCH", "/admin/v1/rooms/premiere", `{"capacity":{"per_instance":6}}`); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	within("pause and limit stand at all nodes", func() bool {
		for _, n := range []*node{a, b, c} {
			if doc := room(n, "premiere"); doc["state"] != "paused" || doc["limit"] != 18.0 || doc["active"] != 15.0 {
				return false
			}
		}
		return true
	})
	if code, doc, err := call(c.public, "POST", "/v1/rooms/premiere/enter", ""); err != nil || code != 202 || doc["room_state"] != "paused" {
		t.Errorf("%d %v %v", code, doc, err)
	}
	if code, _, err := c.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"open","message":""}`); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	within("opened at another node, three more are in", func() bool {
		return room(a, "premiere")["active"] == 18.0 && room(b, "premiere")["active"] == 18.0
	})

	// A room that one node was told of is every node's.
	if code, doc, err := a.api("PUT", "/admin/v1/rooms/matinee", `{"capacity":{"active":1}}`); err != nil || code/100 != 2 {
		t.Fatal(code, doc, err)
	}
	within("a room made at one node is listed at another", func() bool {
		_, doc, err := b.api("GET", "/admin/v1/rooms", "")
		list, _ := doc["rooms"].([]any)
		return err == nil && len(list) == 2
	})

	// A gate's permits are counted over all nodes, and so are the directory's owners.
	if code, doc, err := a.api("PUT", "/svc/v1/gates/row", `{"permits":1}`); err != nil || code/100 != 2 {
		t.Fatal(code, doc, err)
	}
	if code, doc, err := b.api("POST", "/svc/v1/gates/row/acquire", `{"lease_ms":60000,"wait_ms":0}`); err != nil || code != 200 {
		t.Fatal(code, doc, err)
	}
	if code, doc, err := c.api("POST", "/svc/v1/gates/row/acquire", `{"lease_ms":60000,"wait_ms":0}`); err != nil || code != 429 || doc["code"] != "gate_full" {
		t.Error(code, doc, err)
	}
	claim := func(n *node, who string) (int, map[string]any, error) {
		return n.api("POST", "/svc/v1/affinity/browsers/alice/claim", `{"instance":"`+who+`","epoch":1,"addr":"127.0.0.1:1","token":"t-`+who+`","build_ms":60000}`)
	}
	code1, mine, err1 := claim(a, "one")
	code2, theirs, err2 := claim(b, "two")
	row, _ := theirs["row"].(map[string]any)
	if err1 != nil || err2 != nil || code1 != 200 || mine["instance"] != "one" || code2 != 409 || row["instance"] != "one" {
		t.Errorf("%d %v %v, %d %v %v", code1, mine, err1, code2, theirs, err2)
	}

	// One node drains another.
	if code, doc, err := a.api("POST", "/admin/v1/nodes/b/drain", ""); err != nil || code != 202 || doc["id"] != "b" {
		t.Fatal(code, doc, err)
	}
	within("a node drained by another is not ready, and is not counted", func() bool {
		res, err := http.Get(b.admin + "/health/ready")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == 503 && limits(12, a, c)()
	})
	if code, _, err := a.api("POST", "/admin/v1/nodes/nobody/drain", ""); err != nil || code != 404 {
		t.Error(code, err)
	}
}
