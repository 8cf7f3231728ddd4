package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"syscall"
	"time"
)

// Plan is the Usher that the demo wants.
type Plan struct {
	Public, Admin net.Listener // bound already; the server closes them
	AdminToken    string
	Dir           string // the data folder; exists
	Room          string
	Path          string // what the room protects, and all below it
	Origin        string
	Active        int
	Idle, Max     time.Duration
	Claim, Grace  time.Duration
	Log           *slog.Logger
}

// Server is a running Usher.
type Server interface {
	// Failed yields the error that ended the server before Close was called.
	Failed() <-chan error
	// Close stops it gracefully, within ctx.
	Close(ctx context.Context) error
}

// Starter starts an Usher in this process. It returns when both listeners answer
// or will shortly.
type Starter func(ctx context.Context, p Plan) (Server, error)

const portTries = 50

// listen binds addr. If its port is taken it takes the next free one, and note
// says so; any other failure is the caller's to mend.
func listen(flag, addr string) (ln net.Listener, note string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", fmt.Errorf("--%s %q: write it as 127.0.0.1:8080", flag, addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, "", fmt.Errorf("--%s %q: the port is not a number from 0 to 65535", flag, addr)
	}
	for try := uint64(0); try < portTries && n+try <= 65535; try++ {
		ln, err = net.Listen("tcp", net.JoinHostPort(host, strconv.FormatUint(n+try, 10)))
		if err == nil {
			if try > 0 {
				note = fmt.Sprintf("port %d is taken, so this uses %d (--%s chooses another)", n, n+try, flag)
			}
			return ln, note, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || n == 0 {
			return nil, "", fmt.Errorf("--%s %s: %w", flag, addr, err)
		}
	}
	return nil, "", fmt.Errorf("--%s %s: this port and the %d after it are taken; choose another", flag, addr, portTries-1)
}

// address is how a listener is reached from this machine.
func address(ln net.Listener) string {
	a, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return "http://" + ln.Addr().String()
	}
	host := a.IP.String()
	if a.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(a.Port))
}
