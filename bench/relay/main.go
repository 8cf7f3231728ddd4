// Command relay measures how long an admission takes from the engine's commit to a sink, and how fast a backlog is carried:
// a room on the memory engine with synced commits, a relay with cursor and leases on the disk, and as sinks a webhook on
// loopback, a table of SQLite and a file, both synced, and kinesalite, an emulator of Kinesis, when it is installed. Beside the webhook stands a bare loop that POSTs what a room tells
// its listeners, by as many connections, and keeps nothing: what is lost with the process is lost.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"

	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	relaykinesis "github.com/ushergo/usher/relay/kinesis"
	"github.com/ushergo/usher/relay/lines"
	"github.com/ushergo/usher/relay/roomlog"
	"github.com/ushergo/usher/relay/sqltable"
	"github.com/ushergo/usher/relay/webhook"
	"github.com/ushergo/usher/room"
)

func main() {
	rate := flag.Int("rate", 500, "admissions a second")
	dur := flag.Duration("for", 10*time.Second, "how long admissions come")
	backlog := flag.Int("backlog", 20_000, "events of the backlog")
	flag.Parse()
	if err := run(*rate, *dur, *backlog); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(rate int, dur time.Duration, backlog int) error {
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Printf("%d admissions a second for %v (one event more each), then %d events at once; milliseconds from commit to acknowledgement\n\n", rate, dur, backlog)
	fmt.Printf("%-24s %9s %9s %9s %14s\n", "", "mean", "p50", "p99", "backlog ev/s")
	var bare, hook result
	for _, c := range []struct {
		name string
		sink func(dir string, url string) (relay.Sink, error) // nil: the bare loop
	}{
		{"bare loop to webhook", nil},
		{"relay to webhook", func(_, url string) (relay.Sink, error) {
			d := &egress.Dialer{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
			return webhook.New(url, webhook.Options{Secret: "a secret of sixteen", Dial: d.DialContext})
		}},
		{"relay to SQLite", func(dir, _ string) (relay.Sink, error) {
			return sqltable.Open(sqltable.SQLite, filepath.Join(dir, "e.db"), "usher_events")
		}},
		{"relay to kinesalite", func(dir, _ string) (relay.Sink, error) { return openKinesis(filepath.Join(dir, "kinesis")) }},
		{"relay to file", func(dir, _ string) (relay.Sink, error) { return lines.Open(filepath.Join(dir, "e.jsonl"), true) }},
	} {
		sub, err := os.MkdirTemp(dir, "run")
		if err != nil {
			return err
		}
		r, err := measure(sub, c.sink, rate, dur, backlog)
		if errors.Is(err, faultproxy.ErrMissing) {
			fmt.Printf("%-24s %v\n", c.name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/1e6) }
		fmt.Printf("%-24s %9s %9s %9s %14.0f\n", c.name, ms(r.mean), ms(r.p50), ms(r.p99), r.perSecond)
		switch c.name {
		case "bare loop to webhook":
			bare = r
		case "relay to webhook":
			hook = r
		}
	}
	fmt.Printf("\nrelay to webhook beside the bare loop: mean %.2f times, backlog %.2f times its speed\n", float64(hook.mean)/float64(bare.mean), hook.perSecond/bare.perSecond)
	return nil
}

// emulated is a stream on an emulator of Kinesis, which ends with it.
type emulated struct {
	*relaykinesis.Sink
	emu *faultproxy.Emulator
}

func (e emulated) Close() error { return errors.Join(e.Sink.Close(), e.emu.Close()) }

// openKinesis starts kinesalite, with a stream of four shards on the disk.
func openKinesis(dir string) (relay.Sink, error) {
	emu, err := faultproxy.Start("kinesalite", "path="+dir)
	if err != nil {
		return nil, err
	}
	for _, k := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if err := os.Setenv(k, "bench"); err != nil {
			return nil, err
		}
	}
	ctx := context.Background()
	conf, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion("eu-west-1"))
	if err != nil {
		return nil, err
	}
	client := kinesis.NewFromConfig(conf, func(o *kinesis.Options) { o.BaseEndpoint = aws.String(emu.URL) })
	if _, err := client.CreateStream(ctx, &kinesis.CreateStreamInput{StreamName: aws.String("bookings"), ShardCount: aws.Int32(4)}); err != nil {
		return nil, err
	}
	sink, err := relaykinesis.OpenSink(ctx, relaykinesis.Options{Stream: "bookings", Region: "eu-west-1", Endpoint: emu.URL})
	return emulated{sink, emu}, err
}

type result struct {
	mean, p50, p99 time.Duration
	perSecond      float64
}

// taken notes when events were acknowledged.
type taken struct {
	mu    sync.Mutex
	took  []time.Duration
	count int
}

func (t *taken) add(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took, t.count = append(t.took, d), t.count+1
}

func (t *taken) n() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

func (t *taken) Taken(_ *relay.Event, after time.Duration) { t.add(after) }
func (t *taken) Failed(*relay.Event, relay.Class)          {}
func (t *taken) Buried(*relay.Event)                       {}
func (t *taken) Gap(*relay.GapError)                       {}
func (t *taken) Expired(int)                               {}

func measure(dir string, open func(dir, url string) (relay.Sink, error), rate int, dur time.Duration, backlog int) (r result, err error) {
	engine, err := memory.Open(dir, memory.Options{})
	if err != nil {
		return r, err
	}
	defer engine.Close()
	rooms, err := room.Open(context.Background(), engine, room.Options{})
	if err != nil {
		return r, err
	}
	defer rooms.Close()
	conf := room.DefaultConfig("premiere")
	conf.Capacity.Active = 100_000_000
	rm, err := rooms.Configure(context.Background(), conf, 0)
	if err != nil {
		return r, err
	}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { _, _ = io.Copy(io.Discard, req.Body) }))
	defer srv.Close()

	t := &taken{}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if open == nil {
		defer rm.Listen(post(ctx, &wg, srv.URL, t))()
	} else {
		sink, err := open(dir, srv.URL)
		if err != nil {
			return r, err
		}
		defer func() { wg.Wait(); _ = sink.Close() }()
		leases, err := memory.OpenLeases(dir, "relay.bench", memory.LeaseOptions{})
		if err != nil {
			return r, err
		}
		defer func() { wg.Wait(); _ = leases.Close() }()
		dead, err := memory.OpenDeadLetters(dir, memory.DeadLetterOptions{})
		if err != nil {
			return r, err
		}
		defer func() { wg.Wait(); _ = dead.Close() }()
		rl, err := relay.New(relay.Options{
			ID: "bench", Sink: sink, Leases: leases, Dead: dead, Observer: t, Lease: lease.Options{},
			Source: roomlog.New(engine, roomlog.Options{Listen: func(id string, f func([]room.Event)) (func(), bool) {
				return rm.Listen(f), true
			}}),
		})
		if err != nil {
			return r, err
		}
		wg.Go(func() { _ = rl.Run(ctx) })
		for t.n() < 2 { // the room's own two: everything runs
			time.Sleep(time.Millisecond)
		}
		defer stop()
	}

	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	before := t.n()
	sent := 0
	for end := time.Now().Add(dur); time.Now().Before(end); sent++ {
		<-tick.C
		wg.Go(func() { _, _ = rm.Enter(ctx, room.Ref{}, [16]byte{}) })
	}
	if err := t.await(before + 2*sent); err != nil {
		return r, err
	}
	t.mu.Lock()
	took := slices.Clone(t.took[before:])
	t.mu.Unlock()
	slices.Sort(took)
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	r.mean, r.p50, r.p99 = sum/time.Duration(len(took)), took[len(took)/2], took[len(took)*99/100]

	began, base := time.Now(), t.n()
	var in sync.WaitGroup
	for range 256 {
		in.Go(func() {
			for range backlog / 2 / 256 {
				_, _ = rm.Enter(ctx, room.Ref{}, [16]byte{})
			}
		})
	}
	in.Wait()
	want := backlog / 2 / 256 * 256 * 2
	if err := t.await(base + want); err != nil {
		return r, err
	}
	r.perSecond = float64(want) / time.Since(began).Seconds()
	return r, nil
}

func (t *taken) await(n int) error {
	for end := time.Now().Add(2 * time.Minute); t.n() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d events were acknowledged in two minutes", t.n(), n)
		}
	}
	return nil
}

// post is the bare loop.
func post(ctx context.Context, wg *sync.WaitGroup, url string, t *taken) func([]room.Event) {
	ch := make(chan room.Event, 1<<20)
	client := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, MaxIdleConnsPerHost: 16}}
	for range 16 {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case e := <-ch:
					body, _ := json.Marshal(e.Public("premiere"))
					resp, err := client.Post(url, "application/json", bytes.NewReader(body))
					if err != nil {
						continue
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					t.add(time.Since(time.UnixMicro(e.At)))
				}
			}
		})
	}
	return func(events []room.Event) {
		for _, e := range events {
			ch <- e
		}
	}
}
