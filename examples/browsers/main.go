package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/redis/rueidis"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/keylock"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tab is a session: a page of its own, with cookies of its own.
type tab struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// service is one instance.
type service struct {
	id, site string
	browser  context.Context
	owner    *affinity.Owner[*tab]
	forced   atomic.Int64
	wrong    atomic.Int64 // requests that ran here without the session being ours
}

// Done is the answer to a task.
type Done struct {
	Instance   string
	Session    string
	Generation uint64
	Entrance   string
}

func run() error {
	id, site := os.Getenv("INSTANCE"), os.Getenv("SITE")
	client, err := dialRedis(os.Getenv("REDIS"))
	if err != nil {
		return err
	}
	defer client.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &service{id: id, site: site}
	var stop func()
	if s.browser, stop, err = startBrowser(); err != nil {
		return err
	}
	defer stop()
	d := redis.NewDirectory(client)
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("self", id)
	s.owner, err = affinity.Open(d, affinity.Options[*tab]{
		Space: "browsers", Instance: id, Addr: l.Addr().String(), Every: 500 * time.Millisecond,
		Build:    s.login,
		Close:    func(t *tab, why error) { t.cancel() }, // also when a task hangs in it: closing the page ends the task
		Observer: watcher{log},
		Locks:    keylock.Options{MaxHold: 15 * time.Second, Forced: func(string, uint64) { s.forced.Add(1) }},
		Logger:   log,
	})
	if err != nil {
		return err
	}
	peer, err := gateway.Peer(s.owner, s.http, gateway.Options{
		Directory: d, Key: gateway.Key{Query: "account"}, Secret: os.Getenv("SECRET"),
		Health: gateway.Health{Every: 200 * time.Millisecond, Timeout: 5 * time.Second, FailAfter: 15 * time.Second}, Logger: log,
	}, gateway.OwnedOptions{})
	if err != nil {
		return err
	}
	go s.consume(client)
	mux := http.NewServeMux()
	mux.HandleFunc("/admin/task", s.admin)
	mux.HandleFunc("/metrics", s.metrics)
	mux.Handle("/", peer)
	go func() { // whoever started us has ended
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
		os.Exit(0)
	}()
	fmt.Println(l.Addr())
	return http.Serve(l, mux)
}

// watcher says why sessions end and logins fail, so that each login after an account's first can be explained.
type watcher struct{ log *slog.Logger }

func (w watcher) Built(account string, took time.Duration, err error) {
	if err != nil {
		w.log.Warn("a login failed", "account", account, "took", took, "why", err.Error())
	}
}

func (w watcher) Retired(account string, why error) {
	w.log.Warn("a session ended", "account", account, "why", why.Error(), "lost", errors.Is(why, affinity.ErrLost))
}

func (w watcher) Refreshed(int, int, error) {}

// dialRedis reaches a Redis at host:port or at the path of its Unix socket.
func dialRedis(addr string) (rueidis.Client, error) {
	opts := rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true}
	if strings.HasPrefix(addr, "/") {
		opts.InitAddress, opts.ForceSingleClient = []string{"redis:0"}, true
		opts.DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", addr)
		}
	}
	return rueidis.NewClient(opts)
}

func startBrowser() (context.Context, func(), error) {
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true))
	if path := os.Getenv("USHER_CHROMIUM"); path != "" {
		opts = append(opts, chromedp.ExecPath(path))
	}
	alloc, freeAlloc := chromedp.NewExecAllocator(context.Background(), opts...)
	browser, free := chromedp.NewContext(alloc)
	if err := chromedp.Do(browser); err != nil {
		return nil, nil, fmt.Errorf("chromium does not start: %w", err)
	}
	return browser, func() { free(); freeAlloc() }, nil
}

// login builds a session. The key has been claimed: nobody else logs this account in.
func (s *service) login(ctx context.Context, account string, fence uint64) (*tab, error) {
	page, cancel := chromedp.NewContext(s.browser, chromedp.WithNewBrowserContext())
	defer context.AfterFunc(ctx, cancel)() // the login has no longer than the claim
	if err := chromedp.Do(page, chromedp.Navigate(fmt.Sprintf("%s/login?account=%s&fence=%d", s.site, url.QueryEscape(account), fence))); err != nil {
		cancel()
		return nil, err
	}
	return &tab{page, cancel}, nil
}

// task is what an account's page does, for one caller at a time.
func (s *service) task(ctx context.Context, ses affinity.Session[*tab], entrance string, hang bool) (Done, error) {
	if s.owner.Owns(ses.Key) != ses.Generation {
		s.wrong.Add(1)
	}
	js := fmt.Sprintf(`(async () => {
		const begin = await fetch('/begin?account=%s');
		const who = await begin.json();
		await new Promise(done => setTimeout(done, %d));
		await fetch('/end');
		return who;
	})()`, url.QueryEscape(ses.Key), map[bool]int{false: 3, true: 3600_000}[hang])
	done := Done{Instance: s.id, Generation: ses.Generation, Entrance: entrance}
	end := make(chan error, 1)
	// The page has its own context; what ends with the caller's is the wait.
	go func() {
		var err error
		done.Session, err = chromedp.Run(ses.Value.ctx, chromedp.Evaluate[string](js, chromedp.EvalAwaitPromise))
		end <- err
	}()
	select {
	case err := <-end:
		return done, err
	case <-ctx.Done():
		if hang { // a bad task that does not hear: it holds on until its page is closed
			<-end
			return Done{}, context.Cause(ctx)
		}
		// The page may still be busy with it: nobody else may have this page.
		s.owner.Retire(ses.Key, errors.New("a caller left in the middle of a task"))
		return Done{}, context.Cause(ctx)
	}
}

// http is the first entrance.
func (s *service) http(w http.ResponseWriter, r *http.Request, ses affinity.Session[*tab]) {
	done, err := s.task(r.Context(), ses, "http", r.FormValue("hang") != "")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(done)
}

// admin is the second: for people, at whichever instance has the session.
func (s *service) admin(w http.ResponseWriter, r *http.Request) {
	err := s.owner.Use(r.Context(), r.FormValue("account"), func(ctx context.Context, ses affinity.Session[*tab]) error {
		done, err := s.task(ctx, ses, "admin", false)
		if err == nil {
			err = json.NewEncoder(w).Encode(done)
		}
		return err
	})
	var other *affinity.NotOwnerError
	switch {
	case errors.As(err, &other):
		http.Error(w, "the session is at "+other.Row.Owner.Instance, http.StatusMisdirectedRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// consume is the third: messages are accounts. One whose session is elsewhere is put back for its owner.
func (s *service) consume(client rueidis.Client) {
	ctx := context.Background()
	for {
		got, err := client.Do(ctx, client.B().Blpop().Key("tasks:"+s.id, "tasks").Timeout(1).Build()).AsStrSlice()
		if err != nil || len(got) < 2 {
			if err != nil && !rueidis.IsRedisNil(err) {
				time.Sleep(100 * time.Millisecond)
			}
			continue
		}
		account := got[1]
		go func() {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // it waits in line with everybody else
			defer cancel()
			err := s.owner.Use(ctx, account, func(ctx context.Context, ses affinity.Session[*tab]) error {
				_, err := s.task(ctx, ses, "message", false)
				return err
			})
			to := "done"
			var other *affinity.NotOwnerError
			if errors.As(err, &other) {
				to = "tasks:" + other.Row.Owner.Instance
			} else if err != nil {
				to = "tasks"
			}
			_ = client.Do(context.Background(), client.B().Rpush().Key(to).Element(account).Build()).Error()
		}()
	}
}

// metrics are what alerts.yml reads.
func (s *service) metrics(w http.ResponseWriter, _ *http.Request) {
	st := s.owner.Locks().Stats()
	fmt.Fprintf(w, `# TYPE usher_affinity_sessions gauge
usher_affinity_sessions{instance=%[1]q} %[2]d
# TYPE usher_keylock_forced_total counter
usher_keylock_forced_total{instance=%[1]q} %[3]d
# TYPE usher_keylock_late gauge
usher_keylock_late{instance=%[1]q} %[4]d
# TYPE usher_keylock_waiting gauge
usher_keylock_waiting{instance=%[1]q} %[5]d
# TYPE browsers_not_owner_total counter
browsers_not_owner_total{instance=%[1]q} %[6]d
`, s.id, s.owner.Sessions(), st.Forced, st.Late, st.Waiting, s.wrong.Load())
}
