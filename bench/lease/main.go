// Command lease measures package lease: how long a take-over of many resources takes beyond the lease, beside the bare store's
// takes in the same run; and what workers that just hold their resources ask of DynamoDB, counted. bench/keeper has the price.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/dynamodb"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/lease"
)

func main() {
	n := flag.Int("resources", 20_000, "resources of a take-over")
	length := flag.Duration("lease", 20*time.Second, "the lease")
	hold := flag.Duration("hold", time.Minute, "for how long requests are counted")
	which := flag.String("engines", "memory,redis,dynalite", "those to measure")
	flag.Parse()
	log.SetFlags(0)
	fmt.Printf("take-over of %d resources after a crash, lease %v, two survivors\n", *n, *length)
	fmt.Printf("%-10s %22s %18s %18s %16s\n", "engine", "all owned, beyond", "first owned", "bare takes", "ratio of time")
	for _, e := range engines(*which) {
		if e.err != nil {
			fmt.Printf("%-10s not measured: %v\n", e.name, e.err)
			continue
		}
		takeover(e, *n, *length)
		e.close()
	}
	for _, k := range []struct{ resources, workers int }{{100, 1}, {500, 1}, {2000, 3}} {
		holding(k.resources, k.workers, *hold)
	}
}

type engine struct {
	name  string
	open  func(space string) lease.Store
	close func()
	err   error
}

func engines(which string) (es []engine) {
	mem := engine{name: "memory", close: func() {}, open: func(space string) lease.Store {
		s, err := memory.OpenLeases("", space, memory.LeaseOptions{})
		check(err)
		return s
	}}
	for _, name := range strings.Split(which, ",") {
		switch name {
		case "memory":
			es = append(es, mem)
		case "redis":
			es = append(es, redisEngine())
		case "dynalite":
			es = append(es, dynamoEngine())
		}
	}
	return es
}

func redisEngine() engine {
	e := engine{name: "redis"}
	dir, err := os.MkdirTemp("", "lease")
	check(err)
	sock := filepath.Join(dir, "s")
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", sock, "--save", "", "--appendonly", "yes", "--dir", dir)
	if e.err = cmd.Start(); e.err != nil {
		return e
	}
	for range 500 {
		if c, err := net.Dial("unix", sock); err == nil {
			_ = c.Close()
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{sock}, DisableCache: true, ForceSingleClient: true, DialFn: func(_ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return d.Dial("unix", sock)
	}})
	e.err = err
	e.open = func(space string) lease.Store {
		s, err := redis.NewLeases(client, space)
		check(err)
		return s
	}
	e.close = func() {
		client.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	return e
}

func dynamoEngine() engine {
	e := engine{name: "dynalite"}
	emu, err := faultproxy.Start("dynalite")
	if e.err = err; err != nil {
		return e
	}
	e.open = func(space string) lease.Store { return table(emu.URL, space) }
	e.close = func() { _ = emu.Close() }
	return e
}

func table(url, name string) *dynamodb.Leases {
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"} {
		check(os.Setenv(k, v))
	}
	client, err := dynamodb.Client(context.Background(), dynamodb.Settings{Region: "eu-west-1", Endpoint: url})
	check(err)
	_, err = dynamodb.Create(context.Background(), client, name, dynamodb.CreateOptions{})
	check(err)
	return dynamodb.NewLeases(client, name)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// side does f for 0 to n-1, 32 at once.
func side(n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 32 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

func takeover(e engine, n int, length time.Duration) {
	ctx := context.Background()
	s := e.open("bench")
	j, err := s.Join(ctx, lease.Join{Worker: "victim", Token: "t", Cap: n})
	check(err)
	rows := make([]lease.Row, n)
	side(n, func(i int) {
		r, err := s.Put(ctx, lease.Put{ID: fmt.Sprintf("r%06d", i), Desired: lease.Started})
		check(err)
		rows[i] = r
	})
	began := time.Now()
	side(n, func(i int) {
		t, err := s.Take(ctx, lease.Take{ID: rows[i].ID, Fence: rows[i].Fence, To: j.Owner})
		check(err)
		if !t.OK {
			log.Fatalf("not taken: %+v", t)
		}
	})
	bare := time.Since(began)
	beat := func(n uint64) {
		if ok, err := s.Beat(ctx, lease.Beat{Owner: j.Owner, Beat: n, Held: len(rows)}); err != nil || !ok {
			log.Fatal("the victim's beat: ", ok, err)
		}
	}
	var owned atomic.Int64
	first, all := make(chan time.Time, 1), make(chan time.Time, 1)
	serve := func(ctx context.Context, _ lease.Resource) error {
		switch owned.Add(1) {
		case 1:
			first <- time.Now()
		case int64(n):
			all <- time.Now()
		}
		<-ctx.Done()
		return nil
	}
	beat(1)
	var workers []*lease.Worker
	for i := range 2 {
		w, err := lease.New(s, lease.Options{Worker: fmt.Sprint("survivor", i), Lease: length, Cap: n, Serve: serve})
		check(err)
		workers = append(workers, w)
	}
	for i := range 3 { // they see it live
		time.Sleep(time.Second)
		beat(uint64(i + 2))
	}
	crash := time.Now() // right after a beat: the worst moment
	f := <-first
	var took time.Duration
	select {
	case t := <-all:
		took = t.Sub(crash) - length
	case <-time.After(5 * time.Minute):
		log.Fatalf("%s: %d of %d owned after five minutes", e.name, owned.Load(), n)
	}
	fmt.Printf("%-10s %15.2f s      %11.2f s      %11.2f s      %11.2f\n", e.name, took.Seconds(), (f.Sub(crash) - length).Seconds(), bare.Seconds(), took.Seconds()/bare.Seconds())
	for _, w := range workers {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		check(w.Close(ctx))
		cancel()
	}
}

// holding counts what workers ask while they just hold what they have.
func holding(resources, workers int, d time.Duration) {
	ctx := context.Background()
	emu, err := faultproxy.Start("dynalite")
	if errors.Is(err, faultproxy.ErrMissing) {
		fmt.Println(err)
		return
	}
	check(err)
	defer emu.Close()
	s := table(emu.URL, "holding")
	side(resources, func(i int) {
		_, err := s.Put(ctx, lease.Put{ID: fmt.Sprintf("r%06d", i), Desired: lease.Started, URL: "wss://feed.test/stream", Spec: make([]byte, 300)})
		check(err)
	})
	var owned atomic.Int64
	var all []*lease.Worker
	for i := range workers {
		w, err := lease.New(s, lease.Options{Worker: fmt.Sprint("w", i), Serve: func(ctx context.Context, _ lease.Resource) error {
			owned.Add(1)
			defer owned.Add(-1)
			<-ctx.Done()
			return nil
		}})
		check(err)
		all = append(all, w)
	}
	deadline := time.Now().Add(5 * time.Minute)
	for settled := false; !settled; time.Sleep(time.Second) {
		settled = owned.Load() == int64(resources)
		for _, w := range all {
			st := w.Stats()
			settled = settled && st.Workers == workers && st.Held <= (resources+workers-1)/workers
		}
		if time.Now().After(deadline) {
			log.Fatalf("%d of %d owned, not settled after five minutes", owned.Load(), resources)
		}
	}
	time.Sleep(15 * time.Second)
	before, began := s.Counts(), time.Now()
	time.Sleep(d)
	after, secs := s.Counts(), time.Since(began).Seconds()
	fmt.Printf("\n%d resources held by %d workers, counted over %.0f s, per second in all\n%-10s %10s %12s %12s\n", resources, workers, secs, "method", "requests", "read units", "write units")
	var names []string
	for name := range after {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		a, b := after[name], before[name]
		if a.Requests == b.Requests {
			continue
		}
		fmt.Printf("%-10s %10.2f %12.2f %12.2f\n", name, float64(a.Requests-b.Requests)/secs, (a.ReadUnits-b.ReadUnits)/secs, (a.WriteUnits-b.WriteUnits)/secs)
	}
	for _, w := range all {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		_ = w.Close(ctx)
		cancel()
	}
}
