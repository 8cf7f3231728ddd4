package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// listen opens a listener, and explains why it could not. flag is what changes
// the address, as "--listen (public.listen)".
func listen(ctx context.Context, addr, what, flag string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err == nil {
		return l, nil
	}
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		who := "another program"
		if h := holder(addr); h != "" {
			who = h
		}
		return nil, fmt.Errorf("the %s address %s is taken by %s; stop it, or choose another with %s", what, addr, who, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("may not listen on %s: ports below 1024 are for root; grant it (setcap cap_net_bind_service=+ep usher), or choose a higher port with %s", addr, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is no address of this machine; choose one with %s, as 127.0.0.1 or 0.0.0.0 for all", addr, flag)
	case errors.As(err, &dns):
		return nil, fmt.Errorf("there is no host %q to listen on; choose an address with %s", dns.Name, flag)
	}
	return nil, fmt.Errorf("cannot listen on the %s address %s: %w; choose another with %s", what, addr, err, flag)
}

// loopback reports whether addr is reachable from this machine alone.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && ip.IsLoopback()
}
