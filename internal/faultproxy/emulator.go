package faultproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// ErrMissing says what to install.
var ErrMissing = errors.New("faultproxy: node, or the packages of internal/faultproxy/emulator, are missing: run tools/install")

// Emulator is a process that speaks an AWS protocol.
type Emulator struct {
	URL   string
	cmd   *exec.Cmd
	stdin io.Closer
}

// Start runs "dynalite" or "kinesalite" on a free loopback port, with state in memory unless flags say path=FOLDER. flags are
// options of theirs, as createTableMs=500; creating and deleting takes no time otherwise. It ends with this process, at the latest.
func Start(what string, flags ...string) (*Emulator, error) {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "emulator")
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, ErrMissing
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", what, "package.json")); err != nil {
		return nil, ErrMissing
	}
	cmd := exec.Command(node, append([]string{filepath.Join(dir, "serve.js"), what}, flags...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "NODE_NO_WARNINGS=1")
	var complaint strings.Builder
	cmd.Stderr = &complaint
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	slow := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer slow.Stop()
	port, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_ = stdin.Close()
		_ = cmd.Wait()
		return nil, fmt.Errorf("faultproxy: %s did not start: %w: %s", what, err, complaint.String())
	}
	return &Emulator{URL: "http://127.0.0.1:" + strings.TrimSpace(port), cmd: cmd, stdin: stdin}, nil
}

// Pid of the process, to stop and go on with.
func (e *Emulator) Pid() int { return e.cmd.Process.Pid }

// Close ends it.
func (e *Emulator) Close() error {
	_ = e.stdin.Close()
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
	return nil
}
