package server

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
)

// leadsBack says why a room cannot have an origin that is this usher itself: each request would come back as one of
// a new visitor, until a single one had taken every place in the room.
func (s *Server) leadsBack(origin string) error {
	for what, l := range map[string]*listener{"public": s.public, "admin": s.admin} {
		if at, ok := l.Addr().(*net.TCPAddr); ok && isAt(origin, at.AddrPort()) {
			return fmt.Errorf("its origin %s is usher's own %s address; name the site behind usher, as http://127.0.0.1:9000", origin, what)
		}
	}
	return nil
}

// isAt reports whether a URL names what listens at addr, as far as that can be seen without asking a name server.
func isAt(origin string, addr netip.AddrPort) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if port != strconv.Itoa(int(addr.Port())) {
		return false
	}
	host, err := netip.ParseAddr(u.Hostname())
	if u.Hostname() == "localhost" {
		host, err = netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	if err != nil {
		return false
	}
	host, ours := host.Unmap(), addr.Addr().Unmap()
	switch {
	case host == ours, host.IsUnspecified(), host.IsLoopback() && (ours.IsLoopback() && u.Hostname() == "localhost" || ours.IsUnspecified()):
		return true
	case !ours.IsUnspecified():
		return false
	}
	own, _ := net.InterfaceAddrs()
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(host.AsSlice()) {
			return true
		}
	}
	return false
}
