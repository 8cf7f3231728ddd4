package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/config"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestTakenPortNamesHolderAndFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = listen(context.Background(), l.Addr().String(), "public", "--listen (public.listen)")
	if err == nil {
		t.Fatal("the port was given twice")
	}
	want := []string{l.Addr().String(), "is taken by", "--listen (public.listen)"}
	if _, statErr := os.Stat("/proc/self/comm"); statErr == nil {
		want = append(want, "(process ")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("no %q in %q", w, err)
		}
	}
}

func TestListenExplains(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:0":            "is no address of this machine",
		"no-such-host.invalid:0": "there is no host",
	} {
		_, err := listen(context.Background(), addr, "public", "--listen")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--listen") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

func TestListeningReadsProcTable(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1
   2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1
`
	if got := listening(table, 8080); len(got) != 1 || got[0] != "4711" {
		t.Errorf("got %v", got)
	}
}

func TestAdminTokenIsMadeOnce(t *testing.T) {
	cfg := config.Default()
	cfg.Engine.Dir = filepath.Join(t.TempDir(), "data")
	var wg sync.WaitGroup
	tokens := make([]string, 20)
	for i := range tokens {
		wg.Go(func() {
			tok, _, _, err := adminToken(cfg)
			if err != nil {
				t.Error(err)
			}
			tokens[i] = tok.Reveal()
		})
	}
	wg.Wait()
	for _, tok := range tokens {
		if tok != tokens[0] || len(tok) != 64 {
			t.Fatalf("20 at once disagree, or the token is short (%d)", len(tok))
		}
	}
	path := filepath.Join(cfg.Engine.Dir, AdminTokenFile)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.Engine.Dir, ".admin-token-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := adminToken(cfg); err == nil || !strings.Contains(err.Error(), "others may read") || strings.Contains(err.Error(), tokens[0]) {
		t.Errorf("a readable token: %v", err)
	}
}

func TestConfiguredAdminTokenTouchesNoFile(t *testing.T) {
	cfg := config.Default()
	cfg.Engine.Dir = filepath.Join(t.TempDir(), "data")
	cfg.Admin.Token = config.NewSecret("0123456789abcdef")
	tok, path, made, err := adminToken(cfg)
	if err != nil || made || path != "" || tok.Reveal() != "0123456789abcdef" {
		t.Errorf("%v %q %v", err, path, made)
	}
	if _, err := os.Stat(cfg.Engine.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("the folder was made")
	}
}

func TestLoggerFormats(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, "warn", "")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("not this")
	log.Warn("this", "room", "a")
	if got := out.String(); !strings.HasPrefix(got, "{") || strings.Contains(got, "not this") || !strings.Contains(got, `"room":"a"`) {
		t.Errorf("not JSON into a pipe: %s", got)
	}
	out.Reset()
	log.Warn("stood still", "for", 2*time.Minute+3*time.Second+123456*time.Microsecond, slog.Group("g", "took", 1500*time.Microsecond))
	if got := out.String(); !strings.Contains(got, `"for":"2m3.1s"`) || !strings.Contains(got, `"took":"1.5ms"`) {
		t.Errorf("durations: %s", got)
	}
	out.Reset()
	if log, err = NewLogger(&out, "debug", "text"); err != nil {
		t.Fatal(err)
	}
	log.Debug("hello")
	if got := out.String(); !strings.Contains(got, "level=debug msg=hello") {
		t.Errorf("got %s", got)
	}
	for _, bad := range [][2]string{{"loud", ""}, {"info", "xml"}} {
		if _, err := NewLogger(io.Discard, bad[0], bad[1]); err == nil || !strings.Contains(err.Error(), "choose") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestPanicsOfHandlersAreErrors(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	l := httpLog(log)
	l.Printf("http: TLS handshake error from 192.0.2.1:5: EOF")
	if out.Len() > 0 {
		t.Errorf("noise: %s", out.String())
	}
	l.Printf("http: panic serving 192.0.2.1:5: oh no\ngoroutine 7 [running]:\nmain.handler()")
	if got := out.String(); !strings.Contains(got, "level=error") || !strings.Contains(got, "main.handler()") {
		t.Errorf("got %s", got)
	}
}

func TestFileLimitIsRaised(t *testing.T) {
	raiseFileLimit(discard()) // must not fail, whatever the limits
}

func TestOTLPIsOffUnlessAsked(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	if exp, err := OTLP(context.Background(), ""); exp != nil || err != nil {
		t.Errorf("%v %v", exp, err)
	}
	for _, bad := range []string{"127.0.0.1:4318", "not a url", "ftp://x/"} {
		if _, err := OTLP(context.Background(), bad); err == nil || !strings.Contains(err.Error(), "write it as") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	exp, err := OTLP(context.Background(), "http://127.0.0.1:4318/v1/traces")
	if exp == nil || err != nil {
		t.Fatalf("%v %v", exp, err)
	}
	if err := exp.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestFullDiskHasAMend(t *testing.T) {
	full := &os.PathError{Op: "write", Path: "keys/x", Err: syscall.ENOSPC}
	if err := mendDisk(fmt.Errorf("token: write the keys: %w", full)); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "make room on that disk") {
		t.Errorf("got %v", err)
	}
	if err := mendDisk(os.ErrPermission); err != os.ErrPermission {
		t.Errorf("got %v", err)
	}
}

func TestDataFolderThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := makeDataFolder(filepath.Join(file, "data")); err == nil || !strings.Contains(err.Error(), "--data (engine.dir)") {
		t.Errorf("got %v", err)
	}
}
