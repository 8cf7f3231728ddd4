package main

import (
	"context"
	"encoding/json"
	"fmt"
	mrand "math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
)

const relayToken = "the-admin-token-of-relay-tests"

// carried waits until every relay's kept cursor has reached the end of the log.
func (w *relayed) carried(last string) {
	w.t.Helper()
	end := time.Now().Add(90 * time.Second)
	for _, id := range []string{"to-file", "to-table", "to-hook"} {
		for {
			s := w.status(id)
			if len(s.Partitions) == 1 && s.Partitions[0].Cursor == last {
				break
			}
			if time.Now().After(end) {
				b, _ := json.MarshalIndent(s, "", "  ")
				w.t.Fatalf("%s has not come to %s:\n%s\n%s", id, last, b, w.p.log())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// run lets visitors pass while usher is killed, and audits everything.
func (w *relayed) run(visitors, kills int) {
	t := w.t
	for i := range w.nodes {
		w.start(i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	defer client.CloseIdleConnections()
	var passed atomic.Int64
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(visitors, 100) {
		wg.Go(func() {
			for next.Add(1) <= int64(visitors) {
				if !w.visit(ctx, client) {
					return
				}
				passed.Add(1)
			}
		})
	}
	for k := range kills {
		for goal := int64(visitors * (k + 1) / (kills + 2)); passed.Load() < goal && ctx.Err() == nil; {
			time.Sleep(5 * time.Millisecond)
		}
		w.down.Store(k%2 == 0) // and the receiver has its troubles too
		i := k % len(w.nodes)
		if mrand.IntN(3) == 0 || w.gentle {
			w.nodes[i].signal(syscall.SIGTERM)
		} else {
			w.nodes[i].signal(syscall.SIGKILL)
		}
		w.nodes[i].exit()
		w.start(i)
		w.down.Store(false)
	}
	wg.Wait()
	if n := passed.Load(); n != int64(visitors) {
		t.Fatalf("%d of %d visitors passed\n%s", n, visitors, w.p.log())
	}
	w.audit(visitors)
}

func (w *relayed) audit(visitors int) {
	t := w.t
	all := w.logged()
	_, epoch, n, _ := relay.ParseRoomID(all[len(all)-1].ID)
	w.carried(fmt.Sprintf("%d.%d", epoch, n))
	var admitted []relay.Event
	for _, e := range all {
		if e.Type == "admitted" {
			admitted = append(admitted, e)
		}
	}
	if len(admitted) != visitors {
		t.Errorf("%d admissions of %d visitors", len(admitted), visitors)
	}

	lines := w.lines("events.jsonl")
	if err := relaytest.Audit(all, lines); err != nil {
		t.Errorf("file: %v", err)
	}
	rows := w.rows()
	if err := relaytest.Audit(admitted, rows); err != nil {
		t.Errorf("table: %v", err)
	}
	if len(rows) != len(admitted) {
		t.Errorf("the table has %d rows for %d admissions", len(rows), len(admitted))
	}

	w.aside(all)

	letters := w.letters("to-hook")
	var dead []string
	for _, l := range letters {
		if l.Class != "rejected" {
			t.Errorf("%s is dead though the receiver did not refuse it: %s", l.Event.ID, l.Reason)
		}
		dead = append(dead, l.Event.ID)
	}
	var refused []string
	for _, e := range admitted {
		if w.refuses(e.ID) {
			refused = append(refused, e.ID)
		}
	}
	slices.Sort(dead)
	slices.Sort(refused)
	if !slices.Equal(dead, refused) {
		t.Errorf("dead letters %v, the receiver refused %v", dead, refused)
	}
	if out, err := w.cli("dlq", "redrive", "to-hook", "--rate", "1000"); err != nil {
		t.Errorf("redrive: %v\n%s", err, out)
	}
	if left := w.letters("to-hook"); len(left) != 0 {
		t.Errorf("%d letters are left after all were brought back", len(left))
	}
	for _, wrong := range [][]string{{"dlq", "drop", "to-hook", "premiere/9.9"}, {"relays", "seek", "to-hook", "--at", "2999-06-01T10:00:00Z"}} {
		if out, err := w.cli(wrong...); err == nil {
			t.Errorf("usher %v: taken\n%s", wrong, out)
		}
	}
	w.mu.Lock()
	hooked, took := slices.Clone(w.hooked), slices.Clone(w.took)
	w.mu.Unlock()
	if err := relaytest.Audit(admitted, hooked); err != nil {
		t.Errorf("webhook: %v", err)
	}
	late := 0
	for _, e := range hooked {
		if e.Late != w.refuses(e.ID) {
			t.Errorf("%s: late %v", e.ID, e.Late)
		}
		if e.Late {
			late++
		}
	}
	slices.Sort(took)
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	t.Logf("%d events, %d admissions; file %d lines, webhook %d requests (%d late); commit to webhook mean %v, p50 %v, p99 %v", len(all), len(admitted),
		len(lines), len(hooked), late, (sum / time.Duration(len(took))).Round(time.Microsecond), took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond))
}

// aside reads the same log by usher relay, in two goes.
func (w *relayed) aside(all []relay.Event) {
	t := w.t
	for range 2 {
		out, err := w.cli("relay", "--from", "usher://"+strings.TrimPrefix(w.p.admin, "http://")+"/premiere", "--to", filepath.Join(w.dir, "aside.jsonl"),
			"--state", filepath.Join(w.dir, "aside"), "--until-idle", "300ms", "--log-level", "error")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	lines := w.lines("aside.jsonl")
	if err := relaytest.Audit(all, lines); err != nil {
		t.Errorf("usher relay: %v", err)
	}
	if len(lines) != len(all) {
		t.Errorf("usher relay wrote %d lines for %d events, though nobody stopped it", len(lines), len(all))
	}
}

// Every admission is in each sink, whoever is killed meanwhile.
func TestRelaysLoseNothing(t *testing.T) {
	quiet(t)
	visitors, kills := 600, 3
	if testing.Short() {
		visitors, kills = 150, 1
	}
	newRelayed(t, 1, "").run(visitors, kills)
}

// Two nodes share rooms, relays and dead letters on Redis; one at a time is stopped, and the other carries on.
func TestRelaysOnRedis(t *testing.T) {
	quiet(t)
	if testing.Short() {
		t.Skip("starts a server; -short")
	}
	redis := redistest.Start(t)
	w := newRelayed(t, 2, "{kind: redis, addrs: ["+redis.Addr+"]}")
	w.gentle = os.Getenv("USHER_SOAK") != "1" // a killed node's relays are taken over after 20 s
	w.run(300, 2)
}

func TestSoakRelays(t *testing.T) {
	if os.Getenv("USHER_SOAK") != "1" {
		t.Skip("20 runs of 5,000 visitors; USHER_SOAK=1")
	}
	for run := range 20 {
		t.Run(fmt.Sprint(run), func(t *testing.T) { newRelayed(t, 1, "").run(5000, 5) })
	}
}
