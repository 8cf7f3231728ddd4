package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/cmd/usher/internal/connapi"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/keeper/keepertest"
	"github.com/ushergo/usher/keeper/sqlsink"
	"github.com/ushergo/usher/lease"
)

// feed is an upstream, and a file for keepers of it.
type feed struct {
	t    *testing.T
	up   *keepertest.Upstream
	url  string
	dir  string
	file string
}

func newFeed(t *testing.T, up *keepertest.Upstream, section string) *feed {
	t.Helper()
	return newFeedOn(t, up, "", section)
}

// newFeedOn is a feed on an engine; empty: memory.
func newFeedOn(t *testing.T, up *keepertest.Upstream, engine, section string) *feed {
	t.Helper()
	srv := httptest.NewServer(up)
	t.Cleanup(func() {
		up.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	f := &feed{t: t, up: up, url: "ws" + strings.TrimPrefix(srv.URL, "http") + "/", dir: t.TempDir()}
	f.file = filepath.Join(f.dir, "usher.yaml")
	text := fmt.Sprintf("public: {listen: 127.0.0.1:0}\nadmin: {listen: 127.0.0.1:0}\nengine: {dir: %q%s}\negress: {allow: [127.0.0.0/8]}\nkeeper: {%s}\n",
		filepath.Join(f.dir, "data"), engine, section)
	if err := os.WriteFile(f.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// rows opens the leases when no process has them.
func (f *feed) leases() *memory.Leases {
	f.t.Helper()
	s, err := memory.OpenLeases(filepath.Join(f.dir, "data"), "keeper", memory.LeaseOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// fill makes n connections before the keeper starts.
func (f *feed) fill(n int) (ids []string) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Join(f.dir, "data"), 0o700); err != nil {
		f.t.Fatal(err)
	}
	s := f.leases()
	defer s.Close()
	for i := range n {
		id := fmt.Sprintf("c%04d", i)
		spec := keeper.Spec{URL: f.url + id, Desired: lease.Started, Cursor: keeper.CursorRule{JSON: "seq"}, Resume: keeper.Resume{Query: "from={cursor}&fence={fence}"}}
		put, err := spec.Put(id)
		if err == nil {
			_, err = s.Put(context.Background(), put)
		}
		if err != nil {
			f.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func (f *feed) start(name string) *process {
	f.t.Helper()
	p := startCommand(f.t, name, []string{"USHER_SERVICE_TOKENS=" + processServiceToken, "USHER_ADMIN_TOKEN=" + processAdminToken}, "--config", f.file)
	line := p.wait("usher " + map[string]string{"keep": "keep is up", "serve": "is up"}[name])
	p.admin = line["admin"].(string)
	return p
}

// exitLate waits longer than exit, for stops that take a drain on a slow machine.
func (p *process) exitLate() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("it does not end:\n%s", p.log())
		return 0
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("in vain: " + what)
		}
	}
}

// SIGTERM on 700 connections: all sockets closed, what was read is stored, the cursors written, everything given back.
func TestKeepGivesBackSevenHundred(t *testing.T) {
	quiet(t)
	n := 700
	if testing.Short() {
		n = 70
	}
	f := newFeed(t, &keepertest.Upstream{Rate: 1}, "drain: 20s") // a slow machine stores all of it, too
	ids := f.fill(n)
	p := f.start("keep")
	eventually(t, "all are open", func() bool { return f.up.Open() == n })
	p.signal(syscall.SIGTERM)
	if code := p.exitLate(); code != 0 {
		t.Fatalf("exit %d\n%s", code, p.log())
	}
	eventually(t, "all sockets are closed", func() bool { return f.up.Open() == 0 })
	s := f.leases()
	defer s.Close()
	sink, err := sqlsink.Open(context.Background(), "sqlite:"+filepath.Join(f.dir, "data", "keeper.db"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	for len(ids) > 0 {
		part := ids[:min(len(ids), lease.MaxBatch)]
		ids = ids[len(part):]
		rows, err := s.Get(context.Background(), part)
		if err != nil || len(rows) != len(part) {
			t.Fatal(len(rows), err)
		}
		for _, r := range rows {
			var last sql.NullInt64
			if err := sink.DB().QueryRow("SELECT MAX(seq) FROM usher_messages WHERE connection = ?", r.ID).Scan(&last); err != nil {
				t.Fatal(err)
			}
			if r.Cursor != "" && r.Cursor != strconv.FormatInt(last.Int64, 10) || r.Cursor == "" && last.Valid {
				t.Errorf("%s: the cursor is %q and message %d is stored", r.ID, r.Cursor, last.Int64)
			}
		}
	}
}

// A sink that hangs (its file is locked) holds up no stop, and a second SIGTERM ends what waits.
func TestKeepStopsBesideAHungSink(t *testing.T) {
	quiet(t)
	for name, c := range map[string]struct {
		section string
		again   bool
		code    int
	}{
		"one SIGTERM": {"drain: 200ms", false, 0},
		"two":         {"drain: 1m", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFeed(t, &keepertest.Upstream{Rate: 20}, c.section)
			f.fill(5)
			p := f.start("keep")
			eventually(t, "all are open", func() bool { return f.up.Open() == 5 })
			db, err := sql.Open("sqlite", "file:"+filepath.Join(f.dir, "data", "keeper.db")+"?_pragma=busy_timeout(10000)&_txlock=immediate")
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			// Messages wait now.
			eventually(t, "messages wait", func() bool {
				return metric(asAdmin(t, p.admin+"/metrics", processAdminToken), "usher_keeper_pending") > 0
			})
			p.signal(syscall.SIGTERM)
			if c.again {
				p.wait("stopping: everything is given back")
				p.signal(syscall.SIGTERM)
			}
			if code := p.exitLate(); code != c.code {
				t.Fatalf("exit %d, want %d\n%s", code, c.code, p.log())
			}
		})
	}
}

// Two workers share the connections on Redis; one is killed, and the other has them all. What each tells is seen by both.
func TestKeepOnRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("starts redis-server, and waits for a lease")
	}
	quiet(t)
	r := redistest.Start(t)
	f := newFeedOn(t, &keepertest.Upstream{Rate: 10}, ", kind: redis, addrs: ["+r.Addr+"]", "lease: 2s, beat: 500ms, desired: 1s")
	one, two := f.start("keep"), f.start("keep")
	client, err := connapi.New(one.admin, config.NewSecret(processServiceToken), "the test")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for i := range 8 {
		id := fmt.Sprintf("c%d", i)
		spec := keeper.Spec{URL: f.url + id, Desired: lease.Started, Cursor: keeper.CursorRule{JSON: "seq"}, Resume: keeper.Resume{Query: "from={cursor}&fence={fence}"}}
		if _, err := client.Put(ctx, id, spec, nil); err != nil {
			t.Fatal(err)
		}
	}
	shared := func() map[string]int {
		list, err := client.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		owners := map[string]int{}
		for _, c := range list {
			if c.Owner != nil {
				owners[c.Owner.Worker]++
			}
		}
		return owners
	}
	eventually(t, "each has half", func() bool {
		o := shared()
		for _, n := range o {
			if n != 4 {
				return false
			}
		}
		return len(o) == 2 && f.up.Open() == 8
	})
	eventually(t, "one node tells of both", func() bool {
		k, err := client.Keeper(ctx)
		if err != nil {
			t.Fatal(err)
		}
		open := 0
		for _, w := range k.Workers {
			if w.Told != nil {
				open += w.Told.Open
			}
		}
		return open == 8
	})
	two.signal(syscall.SIGKILL)
	two.exit()
	eventually(t, "the other has all", func() bool {
		o := shared()
		for _, n := range o {
			if n == 8 {
				return len(o) == 1 && f.up.Open() == 8
			}
		}
		return false
	})
	last := f.up.End()
	sink, err := sqlsink.Open(ctx, "sqlite:"+filepath.Join(f.dir, "data", "keeper.db"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	eventually(t, "everything is stored", func() bool {
		var n int64
		if err := sink.DB().QueryRow("SELECT COUNT(*) FROM usher_messages").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 8*last {
			t.Fatalf("%d messages of %d", n, 8*last)
		}
		return n == 8*last
	})
	one.signal(syscall.SIGTERM)
	if code := one.exitLate(); code != 0 {
		t.Errorf("exit %d\n%s", code, one.log())
	}
}

// metric finds a figure without labels.
func metric(text, name string) float64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err == nil {
				return v
			}
		}
	}
	return -1
}

// The command line makes, shows, stops and removes connections of usher serve, which keeps messages over kill -9.
func TestConnectionsCommand(t *testing.T) {
	quiet(t)
	f := newFeed(t, &keepertest.Upstream{Rate: 20}, "lease: 2s, beat: 500ms, desired: 1s")
	p := f.start("serve")
	run := func(args ...string) string {
		t.Helper()
		t.Setenv("USHER_SERVICE_TOKEN", processServiceToken)
		t.Setenv("USHER_ADMIN_URL", p.admin)
		cmd := newRootCmd()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"connections"}, args...))
		if err := cmd.Execute(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	t.Setenv("FEED_AUTH", "Bearer hunter2")
	if out := run("add", "feed/1", f.url+"one", "--header-env", "Authorization=FEED_AUTH", "--cursor", "seq", "--resume", "from={cursor}&fence={fence}"); !strings.Contains(out, "feed/1: started") {
		t.Error(out)
	}
	last := func() int64 {
		var list []struct {
			LastSeq int64 `json:"last_seq"`
		}
		if err := json.Unmarshal([]byte(run("list", "--json")), &list); err != nil || len(list) != 1 {
			t.Fatal(err, list)
		}
		return list[0].LastSeq
	}
	eventually(t, "the cursor moves", func() bool { return last() > 5 })
	if out := run("list"); !strings.Contains(out, "feed/1") || !strings.Contains(out, "open") {
		t.Error(out)
	}
	if out := run("show", "feed/1"); !strings.Contains(out, "Authorization") || strings.Contains(out, "hunter2") {
		t.Error(out)
	}
	p.signal(syscall.SIGKILL)
	p.exit()
	if strings.Contains(p.log(), "hunter2") {
		t.Error("the log has a header's value")
	}
	before := f.up.Number()
	p = f.start("serve")
	eventually(t, "it goes on after kill -9", func() bool { return last() > before })
	if out := run("stop", "feed/1"); !strings.Contains(out, "stopped") {
		t.Error(out)
	}
	eventually(t, "closed", func() bool { return f.up.Open() == 0 })
	at := last()
	run("start", "feed/1")
	eventually(t, "on again", func() bool { return last() > at })
	run("remove", "feed/1")
	eventually(t, "closed", func() bool { return f.up.Open() == 0 })
	if out := run("list"); !strings.Contains(out, "There is no connection yet") {
		t.Error(out)
	}
	end := f.up.End()
	p.signal(syscall.SIGTERM)
	if code := p.exitLate(); code != 0 {
		t.Errorf("exit %d\n%s", code, p.log())
	}
	// Every message up to the stop is there once.
	sink, err := sqlsink.Open(context.Background(), "sqlite:"+filepath.Join(f.dir, "data", "keeper.db"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	var n, most int64
	if err := sink.DB().QueryRow("SELECT COUNT(*), MAX(seq) FROM usher_messages").Scan(&n, &most); err != nil || n != most || most > end || n == 0 {
		t.Errorf("%d messages up to %d of %d: %v", n, most, end, err)
	}
}
