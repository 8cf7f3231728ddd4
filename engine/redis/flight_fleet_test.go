package redis_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/flight"
	"github.com/ushergo/usher/flight/shared"
)

// The fleet is twenty processes that ask for one hot key, round after round, while leaders are killed in the middle of
// their loads. A worker is this test binary, started with these in its environment.
const (
	workerID    = "USHER_FLIGHT_WORKER"
	workerRedis = "USHER_FLIGHT_REDIS"
	workerURL   = "USHER_FLIGHT_ORIGIN"
	fleetLease  = 2 * time.Second
)

// TestFlightWorker is not a test but what a worker runs.
func TestFlightWorker(t *testing.T) {
	id := os.Getenv(workerID)
	if id == "" {
		return
	}
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Getenv(workerRedis)}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g := shared.New(redis.NewFlights(c), "fleet", shared.Options[string]{Lease: fleetLease, Poll: 200 * time.Millisecond})
	var mu sync.Mutex
	say := func(f string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(os.Stdout, "\n@ "+f+"\n", a...)
	}
	in := bufio.NewScanner(os.Stdin)
	say("ready")
	for in.Scan() {
		round := in.Text()
		before := g.Stats()
		var wg sync.WaitGroup
		for range 5 { // who are one outside
			wg.Go(func() {
				v, err := g.Do(context.Background(), "hot", func(ctx context.Context) (string, error) {
					r, _ := http.NewRequestWithContext(ctx, "GET", os.Getenv(workerURL)+"/?worker="+id+"&round="+round, nil)
					res, err := http.DefaultClient.Do(r)
					if err != nil {
						return "", err
					}
					defer res.Body.Close()
					b, err := io.ReadAll(res.Body)
					return string(b), err
				})
				say("got %s %q %v", round, v, err)
			})
		}
		for { // until this process leads or follows
			s := g.Stats()
			if s.Led+s.Followed+s.Alone > before.Led+before.Followed+before.Alone {
				break
			}
			time.Sleep(time.Millisecond)
		}
		say("joined %s", round)
		wg.Wait()
		s := g.Stats()
		say("done %s %d %d", round, s.Lost, s.Alone)
	}
	g.Close(context.Background())
}

type fleetWorker struct {
	id   int
	cmd  *exec.Cmd
	in   io.WriteCloser
	dead bool
	lost int // as it said last
}

type fleetLoad struct {
	worker int
	round  string
	answer chan string
	gone   <-chan struct{}
}

func TestTwentyProcessesOneHotKey(t *testing.T) { // cases/flight 11
	s := newFlightServer(t)
	var mu sync.Mutex
	now, most, total := 0, 0, 0
	loads := make(chan fleetLoad, 100)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now++
		total++
		most = max(most, now)
		mu.Unlock()
		defer func() {
			mu.Lock()
			now--
			mu.Unlock()
		}()
		id, _ := strconv.Atoi(r.FormValue("worker"))
		l := fleetLoad{id, r.FormValue("round"), make(chan string, 1), r.Context().Done()}
		loads <- l
		select {
		case v := <-l.answer:
			io.WriteString(w, v)
		case <-r.Context().Done(): // its process has died
		}
	}))
	defer origin.Close()

	lines := make(chan [2]string, 10_000)
	var ws []*fleetWorker
	for i := range 20 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFlightWorker$", "-test.timeout=5m")
		cmd.Env = append(os.Environ(), workerID+"="+strconv.Itoa(i), workerRedis+"="+s.addr, workerURL+"="+origin.URL)
		in, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w := &fleetWorker{id: i, cmd: cmd, in: in}
		ws = append(ws, w)
		go func() {
			sc := bufio.NewScanner(out)
			for sc.Scan() {
				if l, ok := strings.CutPrefix(sc.Text(), "@ "); ok {
					lines <- [2]string{strconv.Itoa(i), l}
				}
			}
		}()
		defer func() {
			in.Close()
			cmd.Process.Kill()
			cmd.Wait()
		}()
	}
	deadline := time.After(4 * time.Minute)
	var open []fleetLoad // that wait for their answer
	var answer string    // of this round, once it is given
	arrive := func(l fleetLoad) {
		if answer != "" && l.round == answer[:1] {
			l.answer <- answer
			return
		}
		open = append(open, l)
	}
	said := map[int][]string{}
	// hear waits until each living worker has said n lines that begin so, and answers those lines.
	hear := func(begin string, n int) map[int][]string {
		for {
			got := map[int][]string{}
			missing := 0
			for _, w := range ws {
				for _, l := range said[w.id] {
					if strings.HasPrefix(l, begin) && !w.dead {
						got[w.id] = append(got[w.id], l)
					}
				}
				if !w.dead && len(got[w.id]) < n {
					missing++
				}
			}
			if missing == 0 {
				return got
			}
			select {
			case l := <-lines:
				id, _ := strconv.Atoi(l[0])
				said[id] = append(said[id], l[1])
			case l := <-loads:
				arrive(l)
			case <-deadline:
				t.Fatalf("%d workers did not say %q", missing, begin)
			}
		}
	}
	// nextLoad waits until there is a load to answer, and takes it.
	nextLoad := func() fleetLoad {
		for len(open) == 0 {
			select {
			case l := <-loads:
				arrive(l)
			case <-deadline:
				t.Fatal("nobody loads")
			}
		}
		l := open[0]
		open = open[1:]
		return l
	}
	hear("ready", 1)

	kills, rounds := 0, 5
	for round := range rounds {
		r := strconv.Itoa(round)
		answer = ""
		for _, w := range ws {
			if !w.dead {
				fmt.Fprintln(w.in, r)
			}
		}
		l := nextLoad()
		hear("joined "+r, 1)
		n := []int{0, 1, 2, 1, 2}[round]
		for range n {
			w := ws[l.worker]
			w.dead = true
			w.cmd.Process.Kill()
			<-l.gone
			kills++
			l = nextLoad() // its one successor, after the lease
			if l.worker == w.id {
				t.Fatal("a dead process loads")
			}
		}
		answer = fmt.Sprintf("%s is the round's value, %d", r, rand.Int())
		for _, l := range append(open, l) {
			l.answer <- answer
		}
		open = nil
		for id, got := range hear("got "+r, 5) {
			for _, g := range got {
				if g != fmt.Sprintf("got %s %q <nil>", r, answer) {
					t.Errorf("worker %d: %s", id, g)
				}
			}
		}
		for id, got := range hear("done "+r, 1) {
			ws[id].lost, _ = strconv.Atoi(strings.Fields(got[0])[2])
		}
	}
	lost := 0
	for _, w := range ws {
		lost += w.lost
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d rounds of 20 processes with 5 callers each, %d leaders killed: %d loads, %d at once, %d leases lost otherwise", rounds, kills, total, most, lost)
	if total < rounds+kills || total > rounds+kills+lost {
		t.Errorf("%d loads at the origin, want one a round and one for each of %d leaders lost", total, kills+lost)
	}
	if most > 1+lost {
		t.Errorf("%d loads at once", most)
	}
}

// With the server gone a process serves alone; when it is back, with all its memory lost, they share again.
func TestFlightsOutliveTheServer(t *testing.T) {
	s := newFlightServer(t)
	var gs []*shared.Group[int]
	for range 3 {
		gs = append(gs, shared.New(redis.NewFlights(s.client()), "s", shared.Options[int]{
			StoreTimeout: 2 * time.Second, Local: flight.Options[string, int]{Budget: flight.Budget{Concurrency: 2}},
		}))
	}
	asked := func() (n uint64) {
		for _, g := range gs {
			s := g.Stats()
			n += s.Led + s.Followed + s.Alone
		}
		return n
	}
	together := func() (loads int) {
		before := asked()
		var mu sync.Mutex
		var wg sync.WaitGroup
		start, end := make(chan struct{}), make(chan struct{})
		var once sync.Once
		for _, g := range gs {
			wg.Go(func() {
				v, err := g.Do(context.Background(), "k", func(context.Context) (int, error) {
					mu.Lock()
					loads++
					mu.Unlock()
					once.Do(func() { close(start) })
					<-end
					return 7, nil
				})
				if v != 7 || err != nil {
					t.Errorf("got %d, %v", v, err)
				}
			})
		}
		<-start
		// Those who follow have asked; those who go alone have begun.
		for deadline := time.Now().Add(60 * time.Second); asked() < before+3; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("not all have asked")
			}
		}
		close(end)
		wg.Wait()
		return loads
	}
	if n := together(); n != 1 {
		t.Errorf("%d loads with the server there", n)
	}
	s.stop()
	if n := together(); n != 3 {
		t.Errorf("%d loads with the server gone, want one a process", n)
	}
	s.start()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		before := gs[0].Stats().Alone + gs[1].Stats().Alone + gs[2].Stats().Alone
		n := together()
		after := gs[0].Stats().Alone + gs[1].Stats().Alone + gs[2].Stats().Alone
		if n == 1 && after == before {
			break
		}
		if time.Now().After(deadline) {
			b, _ := json.Marshal(gs[0].Stats())
			t.Fatalf("they do not share again: %d loads, %s", n, b)
		}
	}
	for _, g := range gs {
		g.Close(context.Background())
	}
}
