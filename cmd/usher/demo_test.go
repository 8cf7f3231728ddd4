package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDemoEndToEnd runs the real thing in a process of its own: cinema, crowd,
// room, proxy. The crowd must buy seats and see no violation; Ctrl-C must end it
// with exit 0 and leave no file.
func TestDemoEndToEnd(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tmp := t.TempDir()
	cmd := exec.Command(os.Args[0], "demo", "--visitors", "60", "--active", "8", "--speed", "10", "--no-browser",
		"--listen", taken.Addr().String(), "--admin-listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "USHER_TEST_AS_MAIN=1", "TMPDIR="+tmp)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()

	enough := regexp.MustCompile(`waiting [1-9]\d*  inside [1-8]/8 .*sold [1-9]\d+.*violations 0$`)
	var all strings.Builder
	stopped := false
	for in := bufio.NewScanner(out); in.Scan(); {
		all.WriteString(in.Text() + "\n")
		if !stopped && enough.MatchString(in.Text()) {
			stopped = true
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !stopped {
		t.Fatalf("%v, enough seen: %v\n%s%s", err, stopped, all.String(), errs.String())
	}
	for _, want := range []string{"is taken, so this uses", "open this  http://127.0.0.1:", " 0 violations. The demo's files are removed."} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no %q in\n%s", want, all.String())
		}
	}
	if strings.Contains(all.String(), "failed") || errs.Len() > 0 {
		t.Errorf("visitors failed or something was complained of:\n%s%s", all.String(), errs.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
