package web_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
	"github.com/ushergo/usher/web"
)

const premiere = "/admin/v1/rooms/premiere"

func TestAdminAsksForTheToken(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	for _, path := range []string{"/admin/v1/rooms", premiere, premiere + "/log", "/admin/v1/nodes", "/admin/v1/routes", "/admin/v1/dashboard",
		"/admin/v1/analysis", "/metrics", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline"} {
		for _, h := range [][]string{nil, bearer("wrong"), bearer(""), bearer(adminToken + "x"), bearer(adminToken[:10]), {"Authorization", "Basic " + adminToken}, {"Authorization", adminToken}} {
			r := send(t, request(t, s.admin.URL, "GET", path, "", h...))
			r.is(t, 401, "unauthorized")
			if r.header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
		}
		if r := s.api("GET", path, ""); r.status != 200 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
		if path != "/metrics" && !strings.Contains(path, "pprof") {
			continue
		}
		s.do("GET", path, "", bearer(adminToken)...).is(t, 404, "not_found") // not on the visitors' listener
	}
	open := build(t, func(o *web.Options) { o.AdminToken = "" })
	open.api("GET", "/admin/v1/rooms", "").is(t, 401, "unauthorized")
	send(t, request(t, open.admin.URL, "GET", "/admin/v1/rooms", "", "Authorization", "Bearer ")).is(t, 401, "unauthorized")
}

func TestRoomsByAPI(t *testing.T) {
	s := build(t, nil)
	s.api("GET", premiere, "").is(t, 404, "room_not_found")
	s.api("PATCH", premiere, `{}`).is(t, 404, "room_not_found")
	s.api("PUT", premiere, `{"capacity":{"active":1}}`, "If-Match", `"1"`).is(t, 412, "revision_conflict")
	r := s.api("PUT", premiere, `{"capacity":{"active":1}}`)
	r.is(t, 201, "")
	d := r.doc(t)
	for k, want := range map[string]any{"revision": 1.0, "active": 0.0, "waiting": 0.0, "limit": 1.0, "admitted_total": 0.0, "rate_per_minute": 0.0, "state": "open"} {
		if d[k] != want {
			t.Errorf("%s is %v, want %v", k, d[k], want)
		}
	}
	if r.header.Get("ETag") != `"1"` || d["config"].(map[string]any)["queue"].(map[string]any)["grace"] != "5m" {
		t.Errorf("%v %s", r.header, r.body)
	}
	s.enter("premiere") // it answers at once
	s.api("PUT", premiere, `{"capacity":{"active":2}}`).is(t, 428, "precondition_required")
	s.api("PATCH", premiere, `{"capacity":{"active":2}}`).is(t, 428, "precondition_required")
	s.api("PUT", premiere, `{"capacity":{"active":2}}`, "If-Match", `"7"`).is(t, 412, "revision_conflict")
	s.api("PUT", premiere, `{"capacity":{"active":2}}`, "If-Match", `junk`).is(t, 412, "revision_conflict")
	s.api("PUT", premiere, `{"capacity":{"active":2}}`, "If-None-Match", `*`).is(t, 412, "revision_conflict")
	r = s.api("PATCH", premiere, `{"capacity":{"rate_per_minute":600},"session":{"idle":"2m"}}`, "If-Match", `"1"`)
	r.is(t, 200, "")
	if c := s.summary("premiere").Config; c.Capacity.Active != 1 || c.Capacity.RatePerMinute != 600 || time.Duration(c.Session.Idle) != 2*time.Minute || r.header.Get("ETag") != `"2"` {
		t.Errorf("%+v", c)
	}
	// null takes a field back to its default.
	s.api("PATCH", premiere, `{"session":{"idle":null},"capacity":{"rate_per_minute":null}}`, "If-Match", "*").is(t, 200, "")
	if c := s.summary("premiere").Config; time.Duration(c.Session.Idle) != 5*time.Minute || c.Capacity.RatePerMinute != 0 {
		t.Errorf("%+v", c)
	}
	// What GET gave may be sent back.
	whole := s.api("GET", premiere, "")
	s.api("PUT", premiere, string(whole.body), "If-Match", whole.header.Get("ETag")).is(t, 200, "")
	r = s.api("GET", "/admin/v1/rooms", "")
	if rooms := r.doc(t)["rooms"].([]any); len(rooms) != 1 {
		t.Errorf("%s", r.body)
	}
}

func TestBadConfigurationsSayWhatIsWrong(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	for body, word := range map[string]string{
		``:                                   "JSON object",
		`[]`:                                 "JSON object",
		`{"capacty":{}}`:                     "capacty",
		`{"capacity":{"active":-1}}`:         "capacity.active",
		`{"capacity":{"active":"many"}}`:     "active",
		`{"capacity":{"active":1},"id":"x"}`: "premiere",
		`{}`:                                 "capacity",
		`{"capacity":{"active":1},"session":{"idle":"5 minutes"}}`:                       "5m",
		`{"capacity":{"active":1},"session":{"idle":"1m","max":"1s"}}`:                   "session.max",
		`{"capacity":{"active":1},"page":{"dir":"/nowhere/at/all"}}`:                     "page.dir",
		`{"capacity":{"active":1},"queue":{"order":"lifo"},"on_engine_failure":"panic"}`: "queue.order",
		`{"capacity":{"active":1}} x`:                                                    "",
	} {
		r := s.api("PUT", premiere, body, "If-Match", "*")
		if r.status != 400 || r.code(t) != "bad_config" || !strings.Contains(string(r.body), word) {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
	r := s.api("PUT", premiere, `{"capacity":{"active":1},"queue":{"order":"lifo"},"on_engine_failure":"panic"}`, "If-Match", "*")
	if errs, _ := r.doc(t)["errors"].([]any); len(errs) != 2 {
		t.Errorf("%s", r.body)
	}
	s.api("PUT", "/admin/v1/rooms/NO", `{"capacity":{"active":1}}`).is(t, 400, "bad_config")
	s.api("PUT", premiere, strings.Repeat(" ", 300<<10), "If-Match", "*").is(t, 413, "body_too_large")
	if s.summary("premiere").Revision != 1 {
		t.Error("a bad configuration was put in force")
	}
}

func TestStateByAPI(t *testing.T) { // cases/room 26
	s := build(t, nil, config("premiere", 1))
	for _, body := range []string{``, `{}`, `{"state":"shut"}`, `{"state":"open","extra":1}`, `{"state":"paused","message":"` + strings.Repeat("x", 1001) + `"}`} {
		s.api("POST", premiere+"/state", body).is(t, 400, "bad_request")
	}
	r := s.api("POST", premiere+"/state", `{"state":"paused","message":"back at 19:40"}`)
	r.is(t, 200, "")
	if d := r.doc(t); d["state"] != "paused" || d["message"] != "back at 19:40" {
		t.Errorf("%s", r.body)
	}
	in, secret := s.enter("premiere")
	in.is(t, 202, "")
	s.api("POST", premiere+"/state", `{"state":"open"}`).is(t, 200, "")
	eventually(t, "she is admitted", func() bool {
		return s.do("GET", "/v1/rooms/premiere/status", "", bearer(secret)...).doc(t)["state"] == "admitted"
	})
	s.api("POST", "/admin/v1/rooms/nothing/state", `{"state":"open"}`).is(t, 404, "room_not_found")
}

func TestDelete(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	s.enter("premiere")
	s.enter("premiere")
	r := s.api("DELETE", premiere, "")
	r.is(t, 409, "room_has_waiters")
	if r.doc(t)["waiting"] != 1.0 {
		t.Errorf("%s", r.body)
	}
	s.api("DELETE", premiere, "", "If-Match", `"9"`).is(t, 412, "revision_conflict")
	s.api("DELETE", premiere+"?force=true", "", "If-Match", `"1"`).is(t, 204, "")
	s.api("GET", premiere, "").is(t, 404, "room_not_found")
	s.do("POST", "/v1/rooms/premiere/enter", "").is(t, 404, "room_not_found")
	s.api("DELETE", premiere, "").is(t, 404, "room_not_found")
	s.api("PUT", premiere, `{"capacity":{"active":1}}`).is(t, 201, "")
}

func TestLog(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	_, secret := s.enter("premiere")
	s.enter("premiere")
	s.do("POST", "/v1/rooms/premiere/claim", "", bearer(secret)...)
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(secret)...)
	type page struct {
		Events []room.PublicEvent `json:"events"`
		Next   json.Number        `json:"next"`
		Cursor string             `json:"next_cursor"`
	}
	read := func(query string) (p page) {
		r := s.api("GET", premiere+"/log"+query, "")
		r.is(t, 200, "")
		if err := json.Unmarshal(r.body, &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	eventually(t, "the log is readable", func() bool { return len(read("").Events) == 8 }) // without syncs it lags a little
	all := read("")
	var types []string
	for i, e := range all.Events {
		types = append(types, e.Type)
		if e.N != uint64(i+1) || e.Room != "premiere" || e.At == "" {
			t.Errorf("%+v", e)
		}
	}
	if got := strings.Join(types, " "); !strings.HasSuffix(got, "entered admitted entered claimed left admitted") || !strings.HasPrefix(got, "limit") {
		t.Errorf("types %s", got)
	}
	one := read("?limit=1")
	if len(one.Events) != 1 || one.Next != "1" {
		t.Errorf("%+v", one)
	}
	for _, after := range []string{one.Next.String(), one.Cursor} {
		if rest := read("?after=" + after); len(rest.Events) != len(all.Events)-1 || rest.Events[0].N != 2 {
			t.Errorf("after %s: %+v", after, rest)
		}
	}
	if end := read("?after=" + all.Next.String()); len(end.Events) != 0 || end.Next != all.Next {
		t.Errorf("%+v", end)
	}
	for _, q := range []string{"?after=x", "?after=1.", "?after=-1", "?limit=0", "?limit=x"} {
		s.api("GET", premiere+"/log"+q, "").is(t, 400, "bad_request")
	}
}

func TestNodesAndKeys(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	r := s.api("GET", "/admin/v1/nodes", "")
	if n := r.doc(t)["nodes"].([]any)[0].(map[string]any); n["id"] != "node-1" || n["self"] != true || n["ready"] != true || n["draining"] != false {
		t.Errorf("%s", r.body)
	}
	before := len(s.keys.List())
	r = s.api("POST", "/admin/v1/keys/rotate", "")
	r.is(t, 200, "")
	if d := r.doc(t); d["already"] != false || d["signs_at"] == "" || len(d["keys"].([]any)) <= before {
		t.Errorf("%s", r.body)
	}
	if r = s.api("POST", "/admin/v1/keys/rotate", ""); r.doc(t)["already"] != true {
		t.Errorf("%s", r.body)
	}
	fixed, err := token.FromEnv(s.keys.Export())
	if err != nil {
		t.Fatal(err)
	}
	env := build(t, nil)
	server, err := web.New(web.Options{Rooms: env.rooms, Keys: fixed, AdminToken: adminToken})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	env.admin.Config.Handler = server.Admin()
	r = env.api("POST", "/admin/v1/keys/rotate", "")
	r.is(t, 409, "keys_not_rotated")
	if !strings.Contains(string(r.body), "USHER_KEYS") {
		t.Errorf("%s", r.body)
	}
	s.api("POST", "/admin/v1/nodes/other/drain", "").is(t, 404, "node_not_found")
	r = s.api("POST", "/admin/v1/nodes/node-1/drain", "")
	r.is(t, 202, "")
	if r.doc(t)["draining"] != true {
		t.Errorf("%s", r.body)
	}
	s.do("GET", "/health/ready", "").is(t, 503, "draining")
}

func TestMetrics(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	s.enter("premiere")
	s.enter("premiere")
	s.do("POST", "/v1/rooms/nothing/enter", "")
	r := s.api("GET", "/metrics", "")
	r.is(t, 200, "")
	families, err := expfmtParse(r.body)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range families {
		if f.GetHelp() == "" {
			t.Errorf("%s has no HELP", name)
		}
	}
	for _, name := range []string{
		"usher_room_waiting", "usher_room_active", "usher_room_limit", "usher_room_admitted_total", "usher_room_tickets_issued_total", "usher_room_state",
		"usher_room_events_total", "usher_http_request_duration_seconds", "usher_http_event_streams", "usher_engine_command_duration_seconds",
		"usher_engine_sync_duration_seconds", "usher_engine_up", "usher_node_draining", "usher_build_info",
		"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds", "go_goroutines",
	} {
		if families[name] == nil {
			t.Errorf("no %s", name)
		}
	}
	for _, line := range []string{
		`usher_room_waiting{room="premiere"} 1`, `usher_room_active{room="premiere"} 1`, `usher_room_limit{room="premiere"} 1`, `usher_room_admitted_total{room="premiere"} 1`,
		`usher_http_request_duration_seconds_count{code="2xx",listener="public",method="POST",route="/v1/rooms/{room}/enter"} 2`,
		`usher_http_request_duration_seconds_count{code="4xx",listener="public",method="POST",route="/v1/rooms/{room}/enter"} 1`,
		`usher_engine_command_duration_seconds_count{op="enter"} 2`,
		`usher_room_state{room="premiere",state="open"} 1`,
	} {
		if !strings.Contains(string(r.body), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

func TestDashboardAndAnalysis(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	_, first := s.enter("premiere")
	_, second := s.enter("premiere")
	s.enter("premiere")
	r := s.api("GET", "/admin/v1/dashboard", "")
	d := r.doc(t)
	rooms := d["rooms"].([]any)
	if d["interval_s"] != 10.0 || len(rooms) != 1 {
		t.Fatalf("%s", r.body)
	}
	one := rooms[0].(map[string]any)
	if one["room"] != "premiere" || one["waiting"] != 2.0 || one["active"] != 1.0 || len(one["samples"].([]any)) < 1 {
		t.Errorf("%s", r.body)
	}
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(first)...)
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(second)...)
	r = s.api("GET", "/admin/v1/analysis", "")
	a := r.doc(t)["rooms"].([]any)[0].(map[string]any)
	stay, _ := a["measured_stay_s"].(float64)
	throughput, _ := a["predicted_throughput_per_minute"].(float64)
	if a["utilisation"].(float64) <= 0 || a["sessions"] != 1.0 || a["target_wait_s"] != 30.0 || a["recommendation"] != "hold" || a["reason"] == "" {
		t.Errorf("%s", r.body)
	}
	if stay > 0.01 && (throughput < 60/stay*0.6 || throughput > 60/stay*1.7) { // stay is rounded
		t.Errorf("%v sessions a minute at a stay of %v s", throughput, stay)
	}
}

func TestAdminPage(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	r := send(t, request(t, s.admin.URL, "GET", "/", ""))
	r.is(t, 200, "")
	csp := r.header.Get("Content-Security-Policy")
	_, nonce, _ := strings.Cut(csp, "script-src 'nonce-")
	nonce, _, _ = strings.Cut(nonce, "'")
	body := string(r.body)
	if len(nonce) < 16 || strings.Count(body, `nonce="`+nonce+`"`) != 2 || strings.Contains(body, "{{") || strings.Contains(body, "http://") && !strings.Contains(body, "www.w3.org") {
		t.Errorf("CSP %q", csp)
	}
	if again := send(t, request(t, s.admin.URL, "GET", "/", "")); again.header.Get("Content-Security-Policy") == csp {
		t.Error("the nonce is not fresh")
	}
	for _, p := range []string{"onclick=", "onload=", " style=\"", adminToken} {
		if strings.Contains(body, p) {
			t.Errorf("the page holds %q", p)
		}
	}
	s.api("OPTIONS", "/admin/v1/rooms", "", "Origin", "https://evil.test", "Access-Control-Request-Method", "GET").is(t, 405, "method_not_allowed")
}

func TestNewRefusesBadOptions(t *testing.T) {
	s := build(t, nil)
	for _, o := range []web.Options{
		{}, {Rooms: s.rooms}, {Rooms: s.rooms, Keys: s.keys, PublicURL: "tickets.test"},
		{Rooms: s.rooms, Keys: s.keys, PublicURL: "https://tickets.test/path"}, {Rooms: s.rooms, Keys: s.keys, AdminToken: "short"},
	} {
		if _, err := web.New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func TestRefreshTakesOverRooms(t *testing.T) {
	s := build(t, nil)
	s.do("GET", "/v1/rooms/late/now", "").is(t, 404, "room_not_found")
	c := config("late", 1)
	c.Match = []room.Match{{Host: "late.test", Path: "/"}}
	if _, err := s.rooms.ApplyFile(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	s.do("GET", "/v1/rooms/late/now", "").is(t, 200, "") // by id at once
	s.server.Refresh()
	s.do("GET", "/.usher/v1/rooms/late/now", "", "Host", "late.test").is(t, http.StatusOK, "")
}

func expfmtParse(b []byte) (map[string]interface{ GetHelp() string }, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(b)))
	out := map[string]interface{ GetHelp() string }{}
	for k, f := range families {
		out[k] = f
	}
	return out, err
}

// What can go wrong on every path does so alike.
func TestAdminRefusalsEverywhere(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	for _, call := range [][2]string{
		{"GET", premiere}, {"PUT", premiere}, {"PATCH", premiere}, {"DELETE", premiere}, {"POST", premiere + "/state"}, {"GET", premiere + "/log"},
		{"POST", "/admin/v1/keys/rotate"}, {"POST", "/admin/v1/nodes/node-1/drain"},
	} {
		send(t, request(t, s.admin.URL, call[0], call[1], "")).is(t, 401, "unauthorized")
	}
	big := strings.Repeat(" ", 300<<10)
	s.api("PATCH", premiere, big, "If-Match", "*").is(t, 413, "body_too_large")
	s.api("POST", premiere+"/state", big).is(t, 413, "body_too_large")
	s.api("PATCH", premiere, `[]`, "If-Match", "*").is(t, 400, "bad_request")
	s.api("PATCH", premiere, `{"capacity":{"active":-1}}`, "If-Match", "*").is(t, 400, "bad_config")
	s.api("PATCH", premiere, `{"capacity":{"active":7}}`, "If-Match", `"7"`).is(t, 412, "revision_conflict")
	s.api("GET", "/admin/v1/rooms/nothing/log", "").is(t, 404, "room_not_found")
	s.store.spoil(func(*room.Command) error { return room.ErrUnavailable }, nil)
	s.api("PUT", premiere, `{"capacity":{"active":7}}`, "If-Match", "*").is(t, 503, "engine_unavailable")
	s.api("PATCH", premiere, `{"capacity":{"active":7}}`, "If-Match", "*").is(t, 503, "engine_unavailable")
	s.api("POST", premiere+"/state", `{"state":"open"}`).is(t, 503, "engine_unavailable")
	if d := s.api("GET", premiere, "").doc(t); d["revision"] != 1.0 {
		t.Errorf("revision %v", d["revision"])
	}
}
