// Package egress dials addresses that others have configured: upstreams of the keeper, webhooks, probes. The address is
// checked when it is dialled, after the name has been resolved, so that no name, redirect or changed answer of a name
// server leads into a private network. Public addresses may be reached; all others only where Allow names them.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// Dialer dials what may be reached. The zero value reaches public addresses alone. Safe for concurrent use once made.
//
// Give DialContext to an http.Transport whose Proxy is nil: a proxy would resolve and dial for itself.
type Dialer struct {
	// Allow are networks that may be reached though they are not public. Danger: each opens an internal network to
	// addresses that others configure; 0.0.0.0/0 and ::/0 open all.
	Allow []netip.Prefix
	// Timeout of one attempt to connect. Default: 10 s. A ctx that ends earlier wins.
	Timeout time.Duration
	// Resolver looks up names. Default: net.DefaultResolver.
	Resolver *net.Resolver
}

// RefusedError says that an address may not be reached.
type RefusedError struct {
	Addr netip.Addr
	Why  string // as "a private address"
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s is %s and egress.allow does not name it; add %s to egress.allow if it may be reached",
		e.Addr, e.Why, netip.PrefixFrom(e.Addr, e.Addr.BitLen()))
}

// DialContext connects to addr, host:port, over network tcp, tcp4 or tcp6. Of a name with several addresses those that may
// be reached are tried. Its error holds a *RefusedError where one was refused and none answered.
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, fmt.Errorf("egress: network %q is not dialled; use tcp", network)
	}
	timeout := d.Timeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	nd := net.Dialer{
		Timeout: timeout, Resolver: d.Resolver, KeepAlive: 30 * time.Second,
		// Control is called with the resolved address, right before connect.
		Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("egress: %q is no address: %w", address, err)
			}
			return d.Check(ap.Addr())
		},
	}
	return nd.DialContext(ctx, network, addr)
}

// Check returns a *RefusedError unless a may be reached.
func (d *Dialer) Check(a netip.Addr) error {
	a = a.WithZone("").Unmap()
	if slices.ContainsFunc(d.Allow, func(p netip.Prefix) bool { return unmap(p).Contains(a) }) {
		return nil
	}
	if why := private(a); why != "" {
		return &RefusedError{Addr: a, Why: why}
	}
	return nil
}

// Refused reports whether err, of a dial, came of a refused address.
func Refused(err error) bool {
	var r *RefusedError
	return errors.As(err, &r)
}

// unmap makes ::ffff:10.0.0.0/104 what it means.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

type network struct {
	prefix netip.Prefix
	why    string
}

// special are the networks of the IANA special-purpose registries (RFC 6890 and its successors) that are not globally
// reachable, in which the netip predicates below do not hold.
func special() []network {
	n := func(p, why string) network { return network{netip.MustParsePrefix(p), why} }
	return []network{
		n("0.0.0.0/8", "an address of this host"),
		n("100.64.0.0/10", "a shared address of a provider"),
		n("192.0.0.0/24", "a reserved address"),
		n("192.0.2.0/24", "an address for documentation"),
		n("192.88.99.0/24", "a reserved address"),
		n("198.18.0.0/15", "an address for benchmarks"),
		n("198.51.100.0/24", "an address for documentation"),
		n("203.0.113.0/24", "an address for documentation"),
		n("240.0.0.0/4", "a reserved address"),
		n("64:ff9b:1::/48", "a translated private address"),
		n("100::/64", "a discarded address"),
		n("2001::/23", "a reserved address"),
		n("2001:db8::/32", "an address for documentation"),
		n("3fff::/20", "an address for documentation"),
		n("5f00::/16", "a segment routing address"),
		n("fec0::/10", "a site-local address"),
		n("::/96", "a reserved address"),
	}
}

// translated are IPv6 networks that carry an IPv4 address, from the given byte: NAT64 (RFC 6052) and 6to4 (RFC 3056).
func translated(a netip.Addr) (netip.Addr, bool) {
	b := a.As16()
	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}

// private says what kind of address a is, if it is not a public one.
func private(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "no address"
	case a.IsUnspecified():
		return "an address of this host"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsPrivate():
		return "a private address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsMulticast():
		return "a multicast address"
	}
	if a.Is6() {
		if v4, ok := translated(a); ok {
			return private(v4)
		}
	}
	for _, n := range special() {
		if n.prefix.Contains(a) {
			return n.why
		}
	}
	return ""
}
