package browsertest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// nginx runs in front of usher with as little said as possible, on a Unix socket, and with a second server whose
// upstream never says anything: that one shows that nginx does hang up. timeout is proxy_read_timeout; "": its default,
// a minute.
func nginx(t *testing.T, to, mute, timeout string) (usher, dumb func() (net.Conn, error)) {
	t.Helper()
	bin := "/usr/sbin/nginx" // not on everybody's PATH
	if _, err := os.Stat(bin); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal("nginx is not installed")
		}
		t.Skip("nginx is not installed (apt-get install nginx)")
	}
	dir := t.TempDir()
	if timeout != "" {
		timeout = "proxy_read_timeout " + timeout + ";"
	}
	conf := fmt.Sprintf(`daemon off; master_process off; pid nginx.pid; error_log stderr crit;
events {}
http {
	access_log off;
	client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
	map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
	%s
	server {
		listen unix:%s/usher;
		location / {
			proxy_pass http://%s;
			proxy_http_version 1.1;
			proxy_set_header Host $http_host;
			proxy_set_header Upgrade $http_upgrade;
			proxy_set_header Connection $connection_upgrade;
		}
	}
	server {
		listen unix:%s/dumb;
		location / { proxy_pass http://%s; }
	}
}
`, timeout, dir, to, dir, mute)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-p", dir, "-c", "nginx.conf")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	dial := func(name string) func() (net.Conn, error) {
		return func() (net.Conn, error) { return net.Dial("unix", filepath.Join(dir, name)) }
	}
	waitFor(t, "nginx up", func() bool {
		c, err := dial("dumb")()
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return dial("usher"), dial("dumb")
}

// idleBehindNginx holds a WebSocket, an event stream and long polls while nothing happens, for longer than nginx has
// patience, and then has the visitor admitted.
func idleBehindNginx(t *testing.T, grace, timeout string, idle time.Duration) { // cases/push 13
	u := run(t, "grace: "+grace, "")
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	dial, dumb := nginx(t, u.public, mute.Addr().String(), timeout)

	inside, v := u.enter(), u.enter()
	l, err := follow(dial, v)
	if err != nil {
		t.Fatal(err)
	}
	defer l.nc.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}}
	get := func(path string) *http.Response {
		req, _ := http.NewRequest("GET", "http://usher.test/v1/rooms/premiere"+path, nil)
		req.Header.Set("Usher-Ticket", v.Ticket)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %s", path, resp.Status)
		}
		return resp
	}
	events := get("/events")
	defer events.Body.Close()
	streamed := make(chan string, 1)
	go func() {
		var all strings.Builder
		b := make([]byte, 4<<10)
		for !strings.Contains(all.String(), `"admission"`) {
			n, err := events.Body.Read(b)
			all.Write(b[:n])
			if err != nil {
				fmt.Fprintf(&all, "\n%v", err)
				break
			}
		}
		streamed <- all.String()
	}()

	// nginx hangs up on the silent one: so it would on ours.
	c, err := dumb()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	cut := make(chan error, 1)
	go func() {
		b := make([]byte, 64)
		n, err := c.Read(b)
		if err == nil && !strings.Contains(string(b[:n]), "504") {
			err = fmt.Errorf("it said %q", b[:n])
		}
		cut <- err
	}()

	pings := 0
	for end := time.Now().Add(idle); time.Now().Before(end); {
		b, code, err := l.next(2 * time.Minute)
		if err != nil || code != 0 {
			t.Fatalf("the WebSocket ended after %d signs of life: code %d, %v", pings, code, err)
		}
		if strings.TrimSpace(string(b)) == "" {
			pings++
		}
	}
	if pings == 0 {
		t.Error("no heart-beat came: something else kept it open, and the test shows nothing")
	}
	select {
	case err := <-cut:
		if err != nil {
			t.Errorf("the silent one: %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("nginx did not hang up on a silent upstream: the test shows nothing")
	}
	u.leave(inside)
	for {
		b, code, err := l.next(time.Minute)
		if err != nil || code != 0 {
			t.Fatalf("the WebSocket ended: code %d, %v", code, err)
		}
		if strings.Contains(string(b), `"admission"`) {
			break
		}
	}
	if got := <-streamed; !strings.Contains(got, `"admission"`) {
		t.Errorf("the event stream ended: %q", got)
	}
	poll := get("/poll")
	defer poll.Body.Close()
}

// Scaled: nginx has 10 s of patience instead of 60, the room's grace makes beats of 3 s instead of 15.
func TestIdleBehindNginx(t *testing.T) {
	if testing.Short() {
		t.Skip("starts usher and nginx, and waits")
	}
	t.Parallel()
	idleBehindNginx(t, "12s", "10s", 22*time.Second)
}

func TestSoakIdleBehindNginx(t *testing.T) {
	if os.Getenv("USHER_SOAK") == "" {
		t.Skip("five idle minutes: USHER_SOAK=1")
	}
	t.Parallel()
	idleBehindNginx(t, "5m", "", 5*time.Minute+10*time.Second)
}
