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
	Public, Admin string // addresses to listen on
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

// freeAddr returns addr, or, if its port is taken, the same with the next free
// one, and a note that says so. Any other failure is the caller's to mend. Someone
// may take the port before the server does; the server's own error then says it.
func freeAddr(flag, addr string) (free, note string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("--%s %q: write it as 127.0.0.1:8080", flag, addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", "", fmt.Errorf("--%s %q: the port is not a number from 0 to 65535", flag, addr)
	}
	for try := uint64(0); try < portTries && n+try <= 65535; try++ {
		var ln net.Listener
		if ln, err = net.Listen("tcp", net.JoinHostPort(host, strconv.FormatUint(n+try, 10))); err == nil {
			free = ln.Addr().String()
			if err := ln.Close(); err != nil {
				return "", "", fmt.Errorf("--%s %s: %w", flag, addr, err)
			}
			if try > 0 {
				note = fmt.Sprintf("port %d is taken, so this uses %d (--%s chooses another)", n, n+try, flag)
			}
			return free, note, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || n == 0 {
			return "", "", fmt.Errorf("--%s %s: %w", flag, addr, err)
		}
	}
	return "", "", fmt.Errorf("--%s %s: this port and the %d after it are taken; choose another", flag, addr, portTries-1)
}

// urlOf is how an address is reached from this machine.
func urlOf(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "http://" + addr
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}
