package chaos

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/redistest"
)

// browser is a visitor with cookies.
type browser struct{ *http.Client }

func newBrowser() browser {
	jar, _ := cookiejar.New(nil)
	return browser{&http.Client{Jar: jar, Timeout: 20 * time.Second}}
}

// open asks for a page as a navigation does.
func (b browser) open(url string) (status int, body string, retry int) {
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return 0, err.Error(), 0
	}
	req.Header.Set("Accept", "text/html")
	req.Header.Set("Sec-Fetch-Mode", "navigate")
	res, err := b.Do(req)
	if err != nil {
		return 0, err.Error(), 0
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	retry, _ = strconv.Atoi(res.Header.Get("Retry-After"))
	return res.StatusCode, string(text), retry
}

// What visitors see while Redis is away, by on_engine_failure, and that it heals by itself.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes; make test runs it")
	}
	redistest.Need(t, "redis-server", "redis-server")
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the origin's page") }))
	defer origin.Close()
	modes := []string{"closed", "admitted", "open"}
	var rooms strings.Builder
	for _, mode := range modes {
		fmt.Fprintf(&rooms, "- {id: %s, match: [{path: /%s}], origin: '%s', capacity: {active: 10}, session: {idle: 20s}, on_engine_failure: %s}\n", mode, mode, origin.URL, mode)
	}
	w := newWorld(t, rooms.String())
	w.redis = redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	w.engine = fmt.Sprintf("{kind: redis, addrs: ['%s'], dial_timeout: 1s, failover_pause: 1s}", w.redis.Addr)
	n := startNode(t, "a", w.config("a"), nil)
	w.nodes = append(w.nodes, n)

	inside := map[string]browser{}
	for _, mode := range modes {
		inside[mode] = newBrowser()
		if code, body, _ := inside[mode].open(n.public + "/" + mode + "/seats"); code != 200 || body != "the origin's page" {
			t.Fatalf("%s: %d %.200s", mode, code, body)
		}
	}
	w.redis.Kill()
	// sees waits until a page is answered as it should be; passing: the origin answers it.
	sees := func(who string, b browser, mode string, passing bool) {
		t.Helper()
		var code, retry int
		var body string
		w.until(fmt.Sprintf("%s sees what %s promises", who, mode), func() bool {
			code, body, retry = b.open(n.public + "/" + mode + "/seats")
			if passing {
				return code == 200 && body == "the origin's page"
			}
			return code == 503 && retry > 0 && body != "the origin's page"
		})
	}
	sees("who was inside", inside["closed"], "closed", false) // once her session is to be renewed: a quarter of idle
	sees("who is new", newBrowser(), "closed", false)
	sees("who was inside", inside["admitted"], "admitted", true)
	sees("who is new", newBrowser(), "admitted", false)
	sees("who was inside", inside["open"], "open", true)
	sees("who is new", newBrowser(), "open", true)
	for range 20 { // and it stays so: each answer is of that mode, none is of luck
		if code, body, _ := inside["admitted"].open(n.public + "/admitted/seats"); code != 200 || body != "the origin's page" {
			t.Fatalf("%d %.200s", code, body)
		}
		if code, _, retry := newBrowser().open(n.public + "/admitted/seats"); code != 503 || retry == 0 {
			t.Fatalf("%d, Retry-After %d", code, retry)
		}
	}
	res, err := http.Post(n.public+"/.usher/v1/rooms/closed/enter", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || !strings.Contains(string(body), `"engine_unavailable"`) {
		t.Errorf("enter: %d %s", res.StatusCode, body)
	}
	w.until("the node is not ready", func() bool {
		res, err := http.Get(n.public + "/.usher/health/ready")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == 503
	})

	w.redis.Again()
	for _, mode := range modes {
		sees("who was inside", inside[mode], mode, true)
		sees("who is new", newBrowser(), mode, true)
	}
	w.until("who was let in without the engine is not counted, and all others are", func() bool {
		code, doc, err := n.api("GET", "/admin/v1/rooms/closed", "")
		return err == nil && code == 200 && doc["active"] == 2.0
	})
}
