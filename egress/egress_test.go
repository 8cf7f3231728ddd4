package egress_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/ushergo/usher/egress"
)

func TestWhatIsPublic(t *testing.T) {
	var d egress.Dialer
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "100.63.255.255", "172.32.0.1", "2606:4700::1111", "2a00:1450::1", "64:ff9b::808:808", "::ffff:8.8.8.8"} {
		if err := d.Check(netip.MustParseAddr(a)); err != nil {
			t.Errorf("%s is refused: %v", a, err)
		}
	}
	for _, a := range []string{
		"127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "0.1.2.3",
		"192.0.0.8", "192.0.2.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "240.0.0.1", "255.255.255.255",
		"::1", "::", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "fec0::1", "2001:db8::1",
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2001:0:1::1",
	} {
		if err := d.Check(netip.MustParseAddr(a)); !egress.Refused(err) {
			t.Errorf("%s is not refused: %v", a, err)
		}
	}
}

func TestAllowOpensWhatItNamesAlone(t *testing.T) {
	d := egress.Dialer{Allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("::ffff:192.168.7.0/120"), netip.MustParsePrefix("fd00:1::/32")}}
	for a, want := range map[string]bool{
		"10.1.2.3": true, "10.2.0.1": false, "::ffff:10.1.0.9": true, "192.168.7.7": true, "192.168.8.7": false, "fd00:1::5": true, "fd00:2::5": false, "127.0.0.1": false,
	} {
		if got := d.Check(netip.MustParseAddr(a)) == nil; got != want {
			t.Errorf("%s allowed: %v, want %v", a, got, want)
		}
	}
}

func TestRefusalNamesTheMend(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d egress.Dialer
	_, err = d.DialContext(context.Background(), "tcp", l.Addr().String())
	var refused *egress.RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "add 127.0.0.1/32 to egress.allow") {
		t.Fatalf("got %v", err)
	}
	d.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	c, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := d.DialContext(context.Background(), "udp", l.Addr().String()); err == nil {
		t.Fatal("udp is dialled")
	}
}

// nameserver answers every A question with addr.
func nameserver(t *testing.T, addr [4]byte) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) == 0 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 0}, Body: &dnsmessage.AResource{A: addr}}}
			}
			out, err := m.Pack()
			if err == nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("udp", pc.LocalAddr().String())
	}}
}

func TestNameThatLeadsInside(t *testing.T) {
	d := egress.Dialer{Resolver: nameserver(t, [4]byte{127, 0, 0, 1})}
	_, err := d.DialContext(context.Background(), "tcp", "innocent.example.com:80")
	if !egress.Refused(err) {
		t.Fatalf("a name that resolves to loopback was dialled: %v", err)
	}
}

func TestRedirectThatLeadsInside(t *testing.T) {
	inner := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("reached") }))
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("no 127.0.0.2 on this machine")
	}
	inner.Listener.Close()
	inner.Listener = l
	inner.Start()
	defer inner.Close()
	outer := httptest.NewServer(http.RedirectHandler(inner.URL, http.StatusFound))
	defer outer.Close()
	d := egress.Dialer{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	c := http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	resp, err := c.Get(outer.URL)
	if err == nil {
		resp.Body.Close()
	}
	if !egress.Refused(err) {
		t.Fatalf("got %v", err)
	}
}
