package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ushergo/usher/config"
)

func noEnv(string) string { return "" }

// load writes the text as usher.yaml and loads it; the error is returned with
// the folder cut from the paths.
func load(t *testing.T, text string) (*config.Config, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "usher.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.LoadEnv(path, noEnv)
	if err == nil {
		return c, ""
	}
	return c, strings.ReplaceAll(err.Error(), dir+"/", "")
}

func mustLoad(t *testing.T, text string) *config.Config {
	t.Helper()
	c, problems := load(t, text)
	if problems != "" {
		t.Fatalf("unexpected problems:\n%s", problems)
	}
	return c
}

func TestDefaults(t *testing.T) {
	c := mustLoad(t, "rooms:\n- {id: premiere, capacity: {active: 600}}\n")
	if c.Public.Listen != "127.0.0.1:8080" || c.Admin.Listen != "127.0.0.1:8081" {
		t.Errorf("listeners: %q %q", c.Public.Listen, c.Admin.Listen)
	}
	if c.Engine.Kind != "memory" || c.Engine.Dir != "./usher-data" || c.Node.Drain != 30*time.Second {
		t.Errorf("engine and node: %+v %+v", c.Engine, c.Node)
	}
	r := c.Rooms[0]
	if r.Session.Idle != 5*time.Minute || r.Session.Max != 30*time.Minute || r.Session.Claim != time.Minute {
		t.Errorf("session: %+v", r.Session)
	}
	if r.Queue.Order != "fifo" || r.Queue.Grace != 5*time.Minute || r.Queue.MaxWaiting != 1_000_000 {
		t.Errorf("queue: %+v", r.Queue)
	}
	if r.Log.MaxBytes != 1<<30 || r.Log.Retain != 24*time.Hour || r.OnEngineFailure != "closed" {
		t.Errorf("log and failure: %+v %q", r.Log, r.OnEngineFailure)
	}
}

// The keys of the design, word for word.
func TestDesignExample(t *testing.T) {
	c := mustLoad(t, `
public: {listen: 127.0.0.1:8080, url: ""}
admin: {listen: 127.0.0.1:8081, token: ""}
service: {tokens: []}
engine: {kind: memory, dir: ./usher-data}
keys: {dir: ""}
node: {id: "", drain: 30s}
trusted_proxies: []
egress: {allow: []}
rooms:
  - id: premiere
    match: [{host: tickets.test, path: /premiere}]
    origin: http://127.0.0.1:9000
    capacity: {active: 600, per_instance: 0, rate_per_minute: 0}
    instances: {source: nodes, selector: "", fallback: 2}
    session: {idle: 5m, max: 30m, claim: 60s, hold: false}
    queue: {order: fifo, grace: 5m, max_waiting: 1000000}
    schedule: {opens_at: "", closes_at: ""}
    on_engine_failure: closed
    cors: []
    page: {dir: ""}
    log: {retain: 24h, max_bytes: 1GiB}
gates: []
routes: []
keeper: {}
relay: []
`)
	if c.Rooms[0].Match[0] != (config.Match{Host: "tickets.test", Path: "/premiere"}) {
		t.Errorf("match: %+v", c.Rooms[0].Match)
	}
}

func TestProblemsSayWhereWhatAndHow(t *testing.T) {
	room := func(more string) string {
		return "rooms:\n- id: a\n  capacity: {active: 5}\n" + more
	}
	for _, tc := range []struct{ name, text, want string }{
		{"misspelt key", "rooms:\n- id: a\n  capcity: {active: 5}\n  capacity: {active: 5}\n",
			`usher.yaml:3:3: rooms[0].capcity: unknown key; did you mean "capacity"?`},
		{"key in the wrong section", room("  grace: 5m\n"),
			`usher.yaml:4:3: rooms[0].grace: unknown key; it belongs under rooms[].queue`},
		{"key nobody knows", "node: {colour: red}\n",
			`usher.yaml:1:8: node.colour: unknown key; the keys here are id, drain`},
		{"key twice", "node: {id: a}\nnode: {id: b}\n",
			`usher.yaml:2:1: node: is given twice, first in line 1; keep one`},
		{"duration in words", room("  session:\n    idle: 5 minutes\n"),
			`usher.yaml:5:11: rooms[0].session.idle: "5 minutes" is not a duration; write 90s, 5m or 1h30m`},
		{"duration without unit", room("  session: {idle: 300}\n"),
			`usher.yaml:4:19: rooms[0].session.idle: "300" is not a duration; a duration needs its unit: 300s, or 300m`},
		{"duration in days", room("  log: {retain: 7d}\n"),
			`usher.yaml:4:17: rooms[0].log.retain: "7d" is not a duration; write days in hours: 168h`},
		{"out of range", room("  queue: {grace: 48h}\n"),
			`usher.yaml:4:18: rooms[0].queue.grace: 48h is out of range; choose from 1s to 24h`},
		{"size", room("  log: {max_bytes: lots}\n"),
			`usher.yaml:4:20: rooms[0].log.max_bytes: "lots" is not a size; write 512MiB, 1GiB or a number of bytes`},
		{"size too small", room("  log: {max_bytes: 4KiB}\n"),
			`usher.yaml:4:20: rooms[0].log.max_bytes: 4KiB is out of range; choose from 1MiB to 1TiB`},
		{"time", room("  schedule: {opens_at: tomorrow}\n"),
			`usher.yaml:4:24: rooms[0].schedule.opens_at: "tomorrow" is not a time; write RFC 3339 with an offset, as 2030-06-01T10:00:00+09:00 or 2030-06-01T01:00:00Z`},
		{"number as text", "rooms:\n- id: a\n  capacity: {active: \"600\"}\n",
			`usher.yaml:3:22: rooms[0].capacity.active: must be a whole number, not the text "600"; write it without quotes`},
		{"choice", room("  queue: {order: fito}\n"),
			`usher.yaml:4:18: rooms[0].queue.order: "fito" is not one of the choices; did you mean "fifo"?`},
		{"room id", "rooms:\n- id: My Room\n  capacity: {active: 5}\n",
			`usher.yaml:2:7: rooms[0].id: "My Room" is not allowed; use 1 to 64 of a-z 0-9 -`},
		{"no id", "rooms:\n- capacity: {active: 5}\n",
			`usher.yaml:2:3: rooms[0].id: is missing; write id: premiere`},
		{"no bound", "rooms:\n- id: a\n",
			`usher.yaml:2:3: rooms[0].capacity: bounds nothing; write capacity: {active: 600}`},
		{"same id", room("- id: a\n  capacity: {active: 1}\n"),
			`usher.yaml:4:7: rooms[1].id: "a" is already the id of rooms[0]; give every room an id of its own`},
		{"same page", room("  match: [{path: /x}]\n- id: b\n  capacity: {active: 1}\n  match: [{path: /X/}]\n"),
			`usher.yaml:7:11: rooms[1].match[0]: /X/ on every host is already matched by room "a"; give the page to one room`},
		{"not a list", "rooms: {id: a}\n",
			`usher.yaml:1:8: rooms: must be a list, not a mapping; begin each item with a dash`},
		{"not a mapping", "engine: memory\n",
			`usher.yaml:1:9: engine: must be a mapping of kind, dir, durability`},
		{"origin without scheme", room("  match: [{path: /}]\n  origin: 127.0.0.1:9000\n"),
			`usher.yaml:5:11: rooms[0].origin: "127.0.0.1:9000" has no scheme; write http://127.0.0.1:9000`},
		{"origin with a path", room("  match: [{path: /}]\n  origin: http://h/app\n"),
			`usher.yaml:5:11: rooms[0].origin: "http://h/app" holds a path; write http://h; paths are passed on`},
		{"origin without match", room("  origin: http://h\n"),
			`rooms[0].match: is missing beside origin; say what the room protects: match: [{path: /}]`},
		{"path that servers read differently", room("  match: [{path: /a/../b}]\n"),
			`rooms[0].match[0].path: "/a/../b" holds . or .. steps; write the path they lead to`},
		{"host with a port", room("  match: [{host: 'h.test:80'}]\n"),
			`rooms[0].match[0].host: "h.test:80" holds a port; leave the port out`},
		{"prequeue without opening", room("  schedule: {prequeue: 5m}\n"),
			`usher.yaml:4:24: rooms[0].schedule.prequeue: is given without opens_at; add opens_at:`},
		{"closes before it opens", room("  schedule: {opens_at: 2030-06-01T10:00:00Z, closes_at: 2030-06-01T09:00:00Z}\n"),
			`rooms[0].schedule.closes_at: 2030-06-01T09:00:00Z is not after opens_at (2030-06-01T10:00:00Z)`},
		{"max under idle", room("  session: {max: 1m}\n"),
			`usher.yaml:4:18: rooms[0].session.max: 1m is shorter than idle (5m); make max the longer one`},
		{"page folder", room("  page: {dir: nowhere}\n"),
			`usher.yaml:4:15: rooms[0].page.dir: cannot read nowhere: no such file or directory; give the path`},
		{"cors star", room("  cors: ['*']\n"),
			`usher.yaml:4:10: rooms[0].cors[0]: * would let every site act for your visitors`},
		{"same listener", "public: {listen: ':8081'}\n",
			`usher.yaml:1:1: admin.listen: is the same as public.listen (:8081); give it a port of its own, as 127.0.0.1:8082`},
		{"port alone", "public: {listen: 8080}\n",
			`usher.yaml:1:18: public.listen: "8080" is a port without a host; write 127.0.0.1:8080, or :8080 for all`},
		{"network without mask", "trusted_proxies: [10.0.0.1]\n",
			`usher.yaml:1:19: trusted_proxies[0]: "10.0.0.1" is an address, not a network; write 10.0.0.1/32`},
		{"network beyond mask", "egress: {allow: [10.1.2.3/8]}\n",
			`usher.yaml:1:18: egress.allow[0]: 10.1.2.3/8 has bits set beyond its mask; write 10.0.0.0/8`},
		{"relay without anything", "relay: [{id: a, from: {rooms: [b]}}]\n",
			`usher.yaml:1:9: relay[0].to: is missing; say where events go: to: {webhook: {url: https://…}}`},
		{"relay with two sinks", "relay: [{id: a, from: {rooms: [b]}, to: {stdout: true, file: {path: x}}}]\n",
			`usher.yaml:1:41: relay[0].to: names several: file, stdout; keep one, and write another relay`},
		{"relay to a table of no database", "relay: [{id: a, from: {rooms: [b]}, to: {sql: {driver: mysql}}}]\n",
			`usher.yaml:1:47: relay[0].to.sql.dsn: is missing; write the database's address`},
		{"relay of no Redis", "relay: [{id: a, from: {redis: {url: 'http://x', stream: s}}, to: {stdout: true}}]\n",
			`usher.yaml:1:37: relay[0].from.redis.url: is not the address of a Redis; write redis://`},
		{"keeper to a sink without address", "keeper: {to: {webhook: {concurrency: 2}}}\n",
			`usher.yaml:1:24: keeper.to.webhook.url: is missing; write url: https://host/path`},
		{"relay start", "relay: [{id: a, from: {rooms: [b]}, to: {stdout: true}, start: now}]\n",
			`usher.yaml:1:64: relay[0].start: "now" is not a place to begin at; write oldest, newest, or a time`},
		{"relay of an ARN", "relay: [{id: a, from: {kinesis: {stream: \"arn:aws:kinesis:x\"}}, to: {stdout: true}}]\n",
			`usher.yaml:1:42: relay[0].from.kinesis.stream: "arn:aws:kinesis:x" is not the name of a stream; use 1 to 128 of A-Z a-z 0-9 _ . -; no ARN`},
		{"relay to no stream", "relay: [{id: a, from: {rooms: [b]}, to: {kinesis: {region: eu-west-1}}}]\n",
			`relay[0].to.kinesis.stream: is missing; name the stream`},
		{"short token", "admin: {token: hunter2}\n",
			`usher.yaml:1:16: admin.token: is too short (7 characters); use at least 16`},
		{"redis without an address", "engine: {kind: redis}\n",
			`usher.yaml:1:9: engine.addrs: is missing beside kind: redis; write addrs: [127.0.0.1:6379]`},
		{"redis address", "engine: {kind: redis, addrs: [localhost]}\n",
			`usher.yaml:1:31: engine.addrs[0]: "localhost" is not an address; write host:port, as 127.0.0.1:6379`},
		{"redis port", "engine: {kind: redis, addrs: ['h:70000']}\n",
			`usher.yaml:1:31: engine.addrs[0]: "70000" is not a port; choose 1 to 65535`},
		{"one redis at two addresses", "engine: {kind: redis, addrs: ['a:1', 'b:1']}\n",
			`usher.yaml:1:30: engine.addrs: names 2 servers, and mode is single; keep one, or write mode: cluster or mode: sentinel`},
		{"sentinel without a master", "engine: {kind: redis, addrs: ['a:1'], mode: sentinel}\n",
			`engine.sentinel_master: is missing beside mode: sentinel; give the name after "sentinel monitor"`},
		{"sentinel key for single", "engine: {kind: redis, addrs: ['a:1'], sentinel_master: x}\n",
			`usher.yaml:1:56: engine.sentinel_master: belongs to mode: sentinel, and mode is single; write mode: sentinel, or remove it`},
		{"user without password", "engine: {kind: redis, addrs: ['a:1'], username: u}\n",
			`engine.password: is missing beside username; give the user's password, in USHER_REDIS_PASSWORD or here`},
		{"authority without tls", "engine: {kind: redis, addrs: ['a:1'], tls_ca: ca.crt}\n",
			`usher.yaml:1:47: engine.tls_ca: is given without tls; write tls: true, or remove it`},
		{"authority that is not there", "engine: {kind: redis, addrs: ['a:1'], tls: true, tls_ca: nowhere.crt}\n",
			`usher.yaml:1:58: engine.tls_ca: cannot read nowhere.crt: no such file or directory; check the path`},
		{"durability for redis", "engine: {kind: redis, addrs: ['a:1'], durability: none}\n",
			`usher.yaml:1:51: engine.durability: belongs to kind: memory, and kind is redis; remove it`},
		{"redis key for memory", "engine: {addrs: ['127.0.0.1:6379']}\n",
			`usher.yaml:1:17: engine.addrs: belongs to kind: redis, and kind is memory; remove it`},
		{"kubernetes without a selector", room("  instances: {source: kubernetes}\n"),
			`rooms[0].instances.selector: is missing beside source: kubernetes; name the labels of the pods that the room protects, as app=shop`},
		{"namespace", room("  instances: {source: kubernetes, selector: app=x, namespace: My_Shop}\n"),
			`rooms[0].instances.namespace: "My_Shop" is not allowed; use 1 to 63 of a-z 0-9 -`},
		{"selector for nodes", room("  instances: {source: nodes, selector: app=x}\n"),
			`rooms[0].instances.selector: belongs to source: kubernetes, and source is nodes; remove it`},
		{"scaler on a taken port", "keda: {listen: ':8081'}\n",
			`usher.yaml:1:16: keda.listen: is the same as public.listen or admin.listen; give it a port of its own, as :8082`},
		{"scaler's certificate without it", "keda: {tls: {cert: a.pem}}\n",
			`usher.yaml:1:13: keda.tls: is given without listen; give keda.listen, as :8082, or remove it`},
		{"gate key", "gates: [{id: a, match: [{path: /x}], permits: 2, key: 'header:'}]\n",
			`usher.yaml:1:55: gates[0].key: "header:" is not allowed; use all, ip, path, header:NAME, cookie:NAME or query:NAME`},
		{"gate by a header of ours", "gates: [{id: a, match: [{path: /x}], permits: 2, key: 'header:X-Usher-Ticket-Id'}]\n",
			`usher.yaml:1:55: gates[0].key: "header:X-Usher-Ticket-Id" is written after the gates: here it is what the visitor made up; count by ip`},
		{"gate nowhere", "gates:\n- {id: a, permits: 2}\n",
			`usher.yaml:2:3: gates[0].match: is missing; say where the gate stands: match: [{path: /checkout}]`},
		{"gate of no permits", "gates:\n- {id: a, match: [{path: /x}], permits: 0}\n",
			`usher.yaml:2:41: gates[0].permits: 0 is out of range; choose from 1 to 1000000`},
		{"gate without permits", "gates:\n- {id: a, match: [{path: /x}]}\n",
			`usher.yaml:2:3: gates[0].permits: is missing; write permits: 20`},
		{"gate without id", "gates:\n- {match: [{path: /x}], permits: 1}\n",
			`usher.yaml:2:3: gates[0].id: is missing; write id: checkout`},
		{"gate twice", "gates:\n- {id: a, match: [{path: /x}], permits: 1}\n- {id: a, match: [{path: /y}], permits: 1}\n",
			`usher.yaml:3:8: gates[1].id: "a" is already the id of gates[0]; give every gate an id of its own`},
		{"gate method", "gates:\n- {id: a, match: [{path: /x, methods: [post]}], permits: 1}\n",
			`usher.yaml:2:40: gates[0].match[0].methods[0]: "post" is not allowed; use methods in capitals, as POST`},
		{"gate path", "gates:\n- {id: a, match: [{path: x}], permits: 1}\n",
			`usher.yaml:2:26: gates[0].match[0].path: "x" does not begin with a slash; write /x`},
		{"gate wait", "gates:\n- {id: a, match: [{path: /x}], permits: 1, wait: 100}\n",
			`usher.yaml:2:50: gates[0].wait: "100" is not a duration; a duration needs its unit`},
		{"gate lease", "gates:\n- {id: a, match: [{path: /x}], permits: 1, lease: 10ms}\n",
			`usher.yaml:2:51: gates[0].lease: 10ms is out of range; choose from 1s to 1h`},
		{"gate choice", "gates:\n- {id: a, match: [{path: /x}], permits: 1, on_engine_failure: admitted}\n",
			`gates[0].on_engine_failure: "admitted" is not one of the choices; choose closed or open`},
		{"gate misspelt", "gates:\n- {id: a, match: [{path: /x}], permit: 1}\n",
			`usher.yaml:2:32: gates[0].permit: unknown key; did you mean "permits"?`},
		{"short service token", "service: {tokens: [hunter2]}\n",
			`usher.yaml:1:20: service.tokens[0]: is too short (7 characters); use at least 16`},
		{"keeper empty", "keeper:\n", `keeper: is empty; write keeper: {} for the defaults`},
		{"keeper beat", "keeper: {lease: 10s}\n",
			`usher.yaml:1:9: keeper.beat: 5s is too long for a lease of 10s; two must fit into nine tenths of it: at most 4.5s`},
		{"keeper silence", "keeper: {ping: 30s, silence: 45s}\n",
			`usher.yaml:1:30: keeper.silence: 45s is less than two pings (1m)`},
		{"keeper table", "keeper: {store: dynamodb}\n",
			`keeper.dynamodb.table: is missing beside store: dynamodb`},
		{"keeper both", "keeper: {sink: 'sqlite:x.db', to: {stdout: true}}\n",
			`keeper.to: is given together with sink; keep one of the two`},
		{"keeper sink", "keeper: {sink: ./x.db}\n",
			`usher.yaml:1:16: keeper.sink: is no sink; begin it with sqlite:, postgres://, mysql: or dynamodb:`},
		{"tab", "rooms:\n\t- id: a\n",
			`usher.yaml:2:1: a tab in the indentation; YAML is indented by spaces, never by tabs: use spaces`},
		{"tab that violates", "rooms:\n  - id: a\n\tcapacity: {active: 4}\n",
			`usher.yaml:3:1: a tab in the indentation; YAML is indented by spaces`},
		{"tab after a dash", "rooms:\n  -\tid: a\n    capacity: {active: 4}\n",
			`usher.yaml:2:4: a tab in the indentation; YAML is indented by spaces`},
		{"at sign", "rooms:\n  - {id: @b}\n",
			`usher.yaml:2: found character that cannot start any token; a value that begins with a tab, or with @`},
		{"bracket", "rooms: [\nnode: {}\n", `every [ { and quote is closed`},
		{"two documents", "node: {}\n---\nnode: {}\n",
			`the file holds a second document; remove the line ---`},
		{"tls half", "admin: {tls: {cert: /nowhere/c.pem}}\n",
			`admin.tls.key: is missing beside cert`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, got := load(t, tc.text); !strings.Contains(got, tc.want) {
				t.Errorf("got\n  %s\nwant in it\n  %s", got, tc.want)
			}
		})
	}
}

// A misspelt key does not hide what is wrong with the one that it resembles.
func TestMisspeltKeyHidesNoSibling(t *testing.T) {
	for text, want := range map[string][]string{
		"rooms:\n- {id: a, capacity: {active: -3, actve: 4}}\n":                                           {"capacity.active: -3 is out of range", "capacity.actve: unknown key"},
		"rooms:\n- {id: a, match: [{path: /}], origin: '127.0.0.1:9', orgin: x, capacity: {active: 3}}\n": {"origin: \"127.0.0.1:9\" has no scheme", "orgin: unknown key"},
	} {
		_, got := load(t, text)
		for _, w := range want {
			if strings.Count(got, w) != 1 || strings.Count(got, "\n") != 1 {
				t.Errorf("%s: no %q in\n%s", text, w, got)
			}
		}
	}
}

func TestEmptyFileWarns(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "rooms:\n", "node: {drain: 5s}\n"} {
		c := mustLoad(t, text)
		if got := c.Warnings().Error(); !strings.Contains(got, "names no room") {
			t.Errorf("%q: %q", text, got)
		}
	}
	if c, err := config.Read("stdin", strings.NewReader("rooms: [{id: a}]\n")); err == nil || !strings.HasPrefix(err.Error(), "stdin:1:") || c == nil {
		t.Errorf("standard input: %v", err)
	}
}

func TestAllProblemsAtOnceInOrder(t *testing.T) {
	_, got := load(t, `public: {lissen: ":80"}
rooms:
  - id: a
    capacity: {active: -1}
    session: {idle: soon, clam: 1s}
    queue: {grace: 100h}
  - id: a
    capacity: {active: 1}
relay: [{}]
`)
	lines := strings.Split(got, "\n")
	if len(lines) != 9 {
		t.Fatalf("want 9 problems, got %d:\n%s", len(lines), got)
	}
	last := 0
	for _, l := range lines {
		var line int
		if _, err := fmt.Sscanf(l, "usher.yaml:%d:", &line); err != nil || line < last {
			t.Errorf("not in the order of the file: %s", l)
		}
		last = line
	}
}

// One mistake is one error: what could not be read is not found missing too.
func TestNoProblemTwice(t *testing.T) {
	for _, text := range []string{
		"rooms:\n- {id: a, capcity: {active: 5}}\n",
		"rooms:\n- {id: a, capacity: {actve: 5}}\n",
		"rooms:\n- {id: a, capacity: {active: five}}\n",
		"rooms:\n- {id: [a], capacity: {active: 5}}\n",
		"rooms:\n- {id: a, capacity: {active: 5}, origin: 'http://h', match: /}\n",
	} {
		if _, got := load(t, text); got == "" || strings.Contains(got, "\n") {
			t.Errorf("%s\ngot\n%s", text, got)
		}
	}
}

func TestMergeAndAlias(t *testing.T) {
	c := mustLoad(t, `
rooms:
  - &base
    id: a
    capacity: {active: 5}
    session: &s {idle: 1m, max: 2m}
  - id: b
    <<: *base
    queue: {order: random}
  - {id: c, capacity: {active: 7}, session: *s}
`)
	if c.Rooms[1].ID != "b" || c.Rooms[1].Capacity.Active != 5 || c.Rooms[1].Queue.Order != "random" || c.Rooms[2].Session.Max != 2*time.Minute {
		t.Errorf("got %+v", c.Rooms)
	}
}

func TestAliasBombIsRefused(t *testing.T) {
	var b strings.Builder
	b.WriteString("trusted_proxies: &a0 [1.2.3.0/24]\nrooms:\n- &r {id: a, cors: [")
	b.WriteString(strings.Repeat("'https://a.test',", 400) + "]}\n")
	b.WriteString(strings.Repeat("- *r\n", 2000))
	if _, got := load(t, b.String()); !strings.Contains(got, "too large") {
		t.Errorf("got %.200s", got)
	}
}

func TestEnvironmentReplacesSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usher.yaml")
	if err := os.WriteFile(path, []byte("admin: {token: short}\nservice: {tokens: [short]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"USHER_ADMIN_TOKEN":    "0123456789abcdef",
		"USHER_SERVICE_TOKENS": "aaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbb",
		"USHER_KEYS":           "keys",
	}
	c, err := config.LoadEnv(path, func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	if c.Admin.Token.Reveal() != env["USHER_ADMIN_TOKEN"] || len(c.Service.Tokens) != 2 || c.Service.Tokens[1].Reveal() != "bbbbbbbbbbbbbbbb" || c.Keys.Inline.Reveal() != "keys" {
		t.Error("the environment did not win")
	}
	env["USHER_SERVICE_TOKENS"] = "tiny"
	_, err = config.LoadEnv(path, func(k string) string { return env[k] })
	if err == nil || !strings.Contains(err.Error(), "USHER_SERVICE_TOKENS: is too short (4 characters)") || strings.Contains(err.Error(), "usher.yaml") {
		t.Errorf("want the variable named, got %v", err)
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	const secret = "correct-horse-battery"
	c := config.Default()
	c.Admin.Token = config.NewSecret(secret)
	c.Service.Tokens = []config.Secret{config.NewSecret(secret)}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%v %+v %#v %s %q %x %d", c, *c, *c, c.Admin.Token, c.Admin.Token, c.Admin.Token, c.Admin.Token)
	j, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	y, err := yaml.Marshal(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(j)
	out.Write(y)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "token", c.Admin.Token, "admin", c.Admin)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "token", c.Admin.Token, "admin", c.Admin)
	if s := out.String(); strings.Contains(s, secret) || strings.Contains(s, fmt.Sprintf("%x", secret)) {
		t.Errorf("a secret was printed:\n%s", s)
	}
	// Nor do errors quote one that stands where it should not.
	_, got := load(t, "rooms:\n- id: a\n  capacity: {active: 1}\n  match: [{path: /}]\n  origin: http://user:"+secret+"@h\n")
	if got == "" || strings.Contains(got, secret) {
		t.Errorf("got %s", got)
	}
}

func TestWarnings(t *testing.T) {
	c := mustLoad(t, `
public: {listen: 0.0.0.0:80, url: https://t.test}
admin: {listen: 0.0.0.0:8081}
engine: {durability: none}
rooms:
- {id: a, capacity: {active: 5, per_instance: 9}, queue: {grace: 30s}, on_engine_failure: open}
`)
	got := c.Warnings().Error()
	for _, want := range []string{
		"admin.listen: the admin API listens beyond this machine without TLS",
		"public.url: a proxy stands in front, but no network is trusted",
		"engine.durability: none",
		"rooms[0].queue.grace: 30s is short",
		"rooms[0].on_engine_failure: open",
		"rooms[0].capacity.per_instance: 9 is more than active (5)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no warning %q in\n%s", want, got)
		}
	}
	if c := mustLoad(t, "rooms:\n- {id: a, capacity: {active: 5}}\n"); len(c.Warnings()) != 0 {
		t.Errorf("a plain file warns: %v", c.Warnings())
	}
}

func TestQuick(t *testing.T) {
	c := config.Quick(config.QuickOptions{Origin: "http://127.0.0.1:9000/", Active: 600}, noEnv)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	r := c.Rooms[0]
	if r.ID != "main" || r.Origin != "http://127.0.0.1:9000" || r.Capacity.Active != 600 || r.Match[0] != (config.Match{Path: "/"}) {
		t.Errorf("got %+v", r)
	}
	err := config.Quick(config.QuickOptions{Origin: "localhost", Active: 0}, noEnv).Validate()
	if got := fmt.Sprint(err); !strings.Contains(got, "rooms[0].origin") || !strings.Contains(got, "rooms[0].capacity") {
		t.Errorf("got %v", err)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]config.Size{"0": 0, "4096": 4096, "1KiB": 1024, "1GiB": 1 << 30, "1.5GiB": 3 << 29, "100MB": 1e8, "5 MiB": 5 << 20, "7B": 7} {
		if got, err := config.ParseSize(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "GiB", "x", "1XB", "NaN", "99999999999TiB", "1e99"} {
		if got, err := config.ParseSize(text); err == nil {
			t.Errorf("%q read as %d", text, got)
		}
	}
}

// What the engine compares to tell a changed room from a restarted node.
func TestRoomConfigNamesValuesNotSpelling(t *testing.T) {
	marshal := func(text string) string {
		data, err := json.Marshal(mustLoad(t, text).Rooms[0].RoomConfig())
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	a := marshal("rooms:\n- {id: a, capacity: {active: 5}, schedule: {opens_at: '2030-06-01T10:00:00+09:00'}}\n")
	b := marshal("# same\nrooms:\n- capacity: {active: 5}\n  session: {idle: 300s}\n  cors: []\n  schedule: {opens_at: 2030-06-01T01:00:00Z}\n  id: a\n")
	c := marshal("rooms:\n- {id: a, capacity: {active: 6}, schedule: {opens_at: '2030-06-01T10:00:00+09:00'}}\n")
	if a != b {
		t.Error("another spelling of the same room differs")
	}
	if a == c {
		t.Error("another limit does not differ")
	}
}

func TestRoomConfigIsValid(t *testing.T) {
	c := mustLoad(t, "rooms:\n- {id: a, match: [{host: T.test, path: /x}], capacity: {active: 5}, cors: ['https://x.test']}\n")
	rc := c.Rooms[0].RoomConfig()
	if err := rc.Validate(); err != nil {
		t.Fatal(err)
	}
	if rc.ID != "a" || rc.Match[0].Host != "t.test" || rc.Capacity.Active != 5 || rc.Log.MaxBytes != 1<<30 || rc.CORS[0] != "https://x.test" {
		t.Errorf("got %+v", rc)
	}
}

func TestRoomPatch(t *testing.T) {
	got, err := config.RoomPatch([]string{"active=800", "queue.order=random", "session.claim=0", "hold=true", "cors=https://a.test,https://b.test", "max_bytes=2GiB", "origin="})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"capacity":{"active":800},"cors":["https://a.test","https://b.test"],"log":{"max_bytes":"2GiB"},"origin":"","queue":{"order":"random"},"session":{"claim":"0s","hold":true}}`
	if string(data) != want {
		t.Errorf("got  %s\nwant %s", data, want)
	}
	_, err = config.RoomPatch([]string{"actve=8", "idle=soon", "id=x", "active", "grace=100h", "queue=1"})
	text := fmt.Sprint(err)
	for _, want := range []string{
		`actve: unknown key; did you mean "active"?`,
		`session.idle: "soon" is not a duration; write 90s`,
		`id: cannot be changed`,
		`active: has no value; write active=VALUE`,
		`queue.grace: 100h is out of range; choose from 1s to 24h`,
		`queue: is a section; name a key in it: queue.order`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("rooms:\n- {id: a, capacity: {active: 5}}\n"))
	f.Add([]byte("rooms: &a [*a]\n"))
	f.Add([]byte("<<: {node: {id: x}}\n"))
	f.Add([]byte("node: !!binary aGk=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse(data)
		if err == nil && c == nil {
			t.Error("neither configuration nor error")
		}
		if err != nil && config.ProblemsOf(err) == nil {
			t.Errorf("not Problems: %v", err)
		}
	})
}

func TestWarnsOfReadableSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usher.yaml")
	if err := os.WriteFile(path, []byte("admin: {token: 0123456789abcdef}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.LoadEnv(path, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Warnings().Error(); !strings.Contains(got, "admin.token: stands in a file that others may read; chmod 600 "+path) {
		t.Errorf("got %q", got)
	}
}
