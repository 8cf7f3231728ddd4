package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) {
	if os.Getenv("INSTANCE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func need(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("browsers are not short")
	}
	chromium := os.Getenv("USHER_CHROMIUM")
	if chromium == "" {
		chromium = "chromium"
	}
	for _, program := range []string{chromium, "redis-server"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("USHER_TEST_ALL") == "1" {
				t.Fatalf("%s is missing: apt-get install chromium redis-server", program)
			}
			t.Skipf("needs %s, which is not installed", program)
		}
	}
}

// world is the site, the directory, and three instances.
type world struct {
	t     *testing.T
	site  *Site
	url   string
	redis string
	db    rueidis.Client
	mu    sync.Mutex
	all   []*instance
	n     int

	killed map[string]bool
	ended  map[string]int // by account: sessions and logins that their instance gave up, for a reason other than a lost row
	dead   int            // times that an instance which lives was found dead
}

// Write is the instances' stderr, in lines of JSON.
func (w *world) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		w.t.Log(strings.TrimSpace(line))
		var e struct {
			Msg, Account, Instance string
			Lost                   bool
		}
		if json.Unmarshal([]byte(line), &e) != nil {
			continue
		}
		w.mu.Lock()
		switch {
		case e.Msg == "a session ended" && !e.Lost, e.Msg == "a login failed":
			w.ended[e.Account]++
		case e.Msg == "an instance is dead; its clients are cut off" && !w.killed[e.Instance]:
			w.dead++
		}
		w.mu.Unlock()
	}
	return len(p), nil
}

type instance struct {
	id, url string
	cmd     *exec.Cmd
}

func newWorld(t *testing.T) *world {
	need(t)
	w := &world{t: t, site: NewSite(), killed: map[string]bool{}, ended: map[string]int{}}
	srv := httptest.NewServer(w.site)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	w.url = srv.URL
	sock := filepath.Join(t.TempDir(), "redis.sock")
	w.redis = sock
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", sock, "--save", "", "--dir", filepath.Dir(sock))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	w.eventually("redis-server answers", func() bool {
		var err error
		w.db, err = dialRedis(sock)
		return err == nil
	})
	t.Cleanup(func() { w.db.Close() })
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { w.start() })
	}
	wg.Wait()
	if len(w.all) != 3 {
		t.FailNow()
	}
	return w
}

func (w *world) start() {
	w.mu.Lock()
	w.n++
	in := &instance{id: fmt.Sprint("i", w.n)}
	w.mu.Unlock()
	in.cmd = exec.Command(os.Args[0])
	in.cmd.Env = append(os.Environ(), "INSTANCE="+in.id, "SITE="+w.url, "REDIS="+w.redis, "SECRET=a secret of this test")
	in.cmd.Stderr, in.cmd.WaitDelay = w, 5*time.Second // each log line is one write of the instance
	_, err := in.cmd.StdinPipe()
	if err != nil {
		w.t.Error(err)
		return
	}
	out, err := in.cmd.StdoutPipe()
	if err != nil {
		w.t.Error(err)
		return
	}
	if err := in.cmd.Start(); err != nil {
		w.t.Error(err)
		return
	}
	w.t.Cleanup(in.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		w.t.Errorf("%s did not start: %v", in.id, err)
		return
	}
	in.url = "http://" + strings.TrimSpace(line)
	w.mu.Lock()
	w.all = append(w.all, in)
	w.mu.Unlock()
}

func (in *instance) kill() {
	if in.cmd.ProcessState == nil {
		_ = in.cmd.Process.Kill()
		_ = in.cmd.Wait()
	}
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("never: " + what)
		}
	}
}

// any is the balancer.
func (w *world) any() *instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[rand.IntN(len(w.all))]
}

func get(url string, to any) (int, error) {
	res, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode == 200 {
		err = json.Unmarshal(b, to)
	}
	return res.StatusCode, err
}

// task asks until it is done: what a client does who may repeat it.
func (w *world) task(account string) Done {
	var d Done
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if code, err := get(w.any().url+"/task?account="+account, &d); err == nil && code == 200 {
			return d
		}
	}
	w.t.Errorf("%s: nobody serves", account)
	return d
}

func (w *world) done(n int64) bool {
	got, err := w.db.Do(w.t.Context(), w.db.B().Llen().Key("done").Build()).AsInt64()
	return err == nil && got >= n
}

func (w *world) push(account string) {
	if err := w.db.Do(w.t.Context(), w.db.B().Rpush().Key("tasks").Element(account).Build()).Error(); err != nil {
		w.t.Error(err)
	}
}

// crowd sends callers through all entrances at once.
func (w *world) crowd(accounts, each int) {
	var wg sync.WaitGroup
	for a := range accounts {
		account := fmt.Sprint("account-", a)
		for range each {
			wg.Go(func() { w.task(account) })
			w.push(account)
			wg.Go(func() { // people ask whichever instance; one of them has it
				var d Done
				_, _ = get(w.any().url+"/admin/task?account="+account, &d)
			})
		}
	}
	wg.Wait()
}

// check holds the counts against the rule: an account is logged in once while its owner lives. A further login needs an
// instance that was killed, or one that gave the session or the login up and said why (a hold that was ended by force, a
// caller who left in the middle of a task), or one that stood still for so long that it was found dead. That a row was lost
// explains nothing.
func (w *world) check() {
	w.t.Helper()
	s := w.site
	s.mu.Lock()
	defer s.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	logins := 0
	for account, n := range s.Logins {
		logins += n
		if most := 1 + len(w.killed) + w.ended[account] + w.dead; n > most {
			w.t.Errorf("%s was logged in %d times; %d can be explained", account, n, most)
		}
	}
	w.t.Logf("%d tasks, %d accounts, %d logins, %d kills, given up %v, found dead alive %d; two tasks on one page %d, tasks by a replaced session %d, late logins refused %d",
		s.Tasks, len(s.Logins), logins, len(w.killed), w.ended, w.dead, s.Together, s.Stale, s.Late)
	if s.Together != 0 || s.Stale != 0 {
		w.t.Error("a session was used by two callers at once, or after it had been replaced")
	}
	for _, in := range w.all {
		if m := in.metrics(); m["browsers_not_owner_total"] != 0 {
			w.t.Errorf("%s served %v requests without owning the session", in.id, m["browsers_not_owner_total"])
		}
	}
}

// kill is kill -9 of the i-th instance.
func (w *world) kill(i int) {
	w.mu.Lock()
	victim := w.all[i]
	w.all = append(w.all[:i:i], w.all[i+1:]...)
	w.killed[victim.id] = true
	w.mu.Unlock()
	victim.kill()
}

func (in *instance) metrics() map[string]float64 {
	m := map[string]float64{}
	res, err := http.Get(in.url + "/metrics")
	if err != nil {
		return m
	}
	defer res.Body.Close()
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		name, rest, ok := strings.Cut(sc.Text(), "{")
		var v float64
		if _, value, _ := strings.Cut(rest, "} "); ok {
			_, _ = fmt.Sscan(value, &v)
			m[name] = v
		}
	}
	return m
}

func TestBrowsers(t *testing.T) {
	w := newWorld(t)
	const accounts, each = 4, 6
	w.crowd(accounts, each)
	w.eventually("the messages are done", func() bool { return w.done(accounts * each) })
	w.check()

	// A page hangs: its hold is ended by force, the metric that the alert rule reads says so, and the session is retired.
	before := w.task("account-0")
	var owner *instance
	for _, in := range w.all {
		if in.id == before.Instance {
			owner = in
		}
	}
	forced := owner.metrics()["usher_keylock_forced_total"]
	go func() { _, _ = get(owner.url+"/task?account=account-0&hang=1", nil) }()
	w.eventually("the hold is ended by force", func() bool { return owner.metrics()["usher_keylock_forced_total"] > forced })
	after := w.task("account-0")
	if after.Generation <= before.Generation || after.Session == before.Session {
		t.Errorf("the hung session was handed on: %+v, then %+v", before, after)
	}
	rules, err := os.ReadFile("alerts.yml")
	if err != nil || !strings.Contains(string(rules), "usher_keylock_forced_total") || !strings.Contains(string(rules), "usher_keylock_late") {
		t.Error("no alert rule reads the metric:", err)
	}

	// The owner is killed.
	owner = nil
	victim := w.task("account-1")
	for i, in := range w.all {
		if in.id == victim.Instance {
			w.kill(i)
			break
		}
	}
	began := time.Now()
	next := w.task("account-1")
	t.Logf("a new session %v after kill -9 of its owner", time.Since(began).Round(time.Millisecond))
	if next.Generation <= victim.Generation || next.Instance == victim.Instance {
		t.Errorf("%+v, then %+v", victim, next)
	}
	w.crowd(accounts, 2)
	w.check()
}

// TestSoakBrowsers kills instances at random while callers come; make soak runs it 50 times, else 2.
func TestSoakBrowsers(t *testing.T) {
	kills := 2
	if os.Getenv("USHER_SOAK") != "" {
		kills = 50
	}
	w := newWorld(t)
	stop := make(chan struct{})
	var tasks atomic.Int64
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					w.task(fmt.Sprint("account-", c%4))
					tasks.Add(1)
				}
			}
		})
	}
	for range kills {
		at := tasks.Load()
		w.eventually("callers are served", func() bool { return tasks.Load() > at+10 })
		w.kill(rand.IntN(len(w.all)))
		w.start()
	}
	at := tasks.Load()
	w.eventually("callers are served", func() bool { return tasks.Load() > at+10 })
	close(stop)
	wg.Wait()
	w.check()
}
