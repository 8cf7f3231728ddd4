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

// freeAddrs returns both addresses, each with the next free port where its own is
// taken, also by the other, and a note for each that differs from what was asked
// for. Someone may take a port before the server does; the server's own error then
// says it.
func freeAddrs(public, admin string) (freePublic, freeAdmin string, notes []string, err error) {
	var free [2]string
	for i, a := range []struct{ flag, addr string }{{"listen", public}, {"admin-listen", admin}} {
		ln, note, err := probe(a.flag, a.addr)
		if err != nil {
			return "", "", nil, err
		}
		defer ln.Close() // at the end: while it is open, the other cannot find the same port
		free[i] = ln.Addr().String()
		if note != "" {
			notes = append(notes, note)
		}
	}
	return free[0], free[1], notes, nil
}

// probe listens on addr, or, if its port is taken, on the next free one, and says
// so in a note. Any other failure is the caller's to mend.
func probe(flag, addr string) (ln net.Listener, note string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", fmt.Errorf("--%s %q: write it as 127.0.0.1:8080", flag, addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, "", fmt.Errorf("--%s %q: the port is not a number from 0 to 65535", flag, addr)
	}
	for try := uint64(0); try < portTries && n+try <= 65535; try++ {
		if ln, err = net.Listen("tcp", net.JoinHostPort(host, strconv.FormatUint(n+try, 10))); err == nil {
			if try > 0 {
				note = fmt.Sprintf("port %d is taken, so this uses %d (or choose by --%s)", n, n+try, flag)
			}
			return ln, note, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || n == 0 {
			return nil, "", fmt.Errorf("--%s %s: %w", flag, addr, err)
		}
	}
	return nil, "", fmt.Errorf("--%s %s: this port and the %d after it are taken; choose another", flag, addr, portTries-1)
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
