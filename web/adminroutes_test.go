package web_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/web"
)

// directory can be away.
type directory struct {
	affinity.Store
	away atomic.Bool
}

func (d *directory) Instances(ctx context.Context, space string) ([]affinity.Instance, error) {
	if d.away.Load() {
		return nil, errors.New("cut")
	}
	return d.Store.Instances(ctx, space)
}

func (d *directory) Drain(ctx context.Context, x affinity.Drain) (bool, error) {
	if d.away.Load() {
		return false, errors.New("cut")
	}
	return d.Store.Drain(ctx, x)
}

func TestRoutesAreListedAndDrained(t *testing.T) {
	d := &directory{Store: memory.NewDirectory(nil)}
	who := affinity.Announce{Space: "browsers", Owner: affinity.Identity{Instance: "b-1", Epoch: 1}, Addr: "10.0.0.1:80", Sessions: 3, TTL: time.Hour}
	announce := func() affinity.Announced {
		t.Helper()
		got, err := d.Announce(t.Context(), who)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	announce()
	s := build(t, func(o *web.Options) {
		o.Directory = d
		o.Routes = func() []web.Route {
			return []web.Route{{ID: "app", Space: "browsers", Static: []affinity.Instance{{Owner: affinity.Identity{Instance: "s-1"}, Addr: "10.0.0.2:80"}}}}
		}
	})
	list := func() []any {
		t.Helper()
		r := s.api("GET", "/admin/v1/routes", "")
		r.is(t, 200, "")
		route := r.doc(t)["routes"].([]any)[0].(map[string]any)
		if route["id"] != "app" || route["space"] != "browsers" {
			t.Errorf("%v", route)
		}
		return route["instances"].([]any)
	}
	first := func(k string) any { return list()[0].(map[string]any)[k] }
	if all := list(); len(all) != 2 || first("sessions") != 3.0 || first("draining") != false || all[1].(map[string]any)["static"] != true {
		t.Errorf("%v", all)
	}
	const drain = "/admin/v1/routes/app/drain"
	s.api("POST", drain, `{"instance":"b-1","within_ms":90000}`).is(t, 204, "")
	if got := announce(); !got.Draining || got.DrainFor != 90*time.Second || first("draining") != true {
		t.Errorf("%+v", got)
	}
	s.api("POST", drain, `{"instance":"b-1","on":false}`).is(t, 204, "")
	if announce().Draining {
		t.Error("still draining")
	}
	s.api("POST", drain, `{"instance":"b-1"}`).is(t, 204, "")
	if got := announce(); !got.Draining || got.DrainFor != 0 {
		t.Errorf("%+v", got)
	}
	for _, tc := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/admin/v1/routes/other/drain", `{"instance":"b-1"}`, 404, "route_not_found"},
		{drain, `{"instance":"s-1"}`, 404, "instance_not_found"},
		{drain, `{"instance":"b 1"}`, 400, "bad_request"},
		{drain, `{"instance":"b-1","within_ms":-1}`, 400, "bad_request"},
		{drain, `{"instance":"b-1","within":1}`, 400, "bad_request"},
		{drain, ``, 400, "bad_request"},
	} {
		s.api("POST", tc.path, tc.body).is(t, tc.status, tc.code)
	}
	d.away.Store(true)
	s.api("GET", "/admin/v1/routes", "").is(t, 503, "directory_unavailable")
	s.api("POST", drain, `{"instance":"b-1"}`).is(t, 503, "directory_unavailable")
}
