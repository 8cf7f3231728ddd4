package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

func (k *checker) listeners() {
	pub, pubOK := k.listen("public.listen", k.c.Public.Listen)
	adm, admOK := k.listen("admin.listen", k.c.Admin.Listen)
	if pubOK && admOK && pub.port == adm.port && pub.port != 0 && (pub.host == adm.host || pub.any() || adm.any()) {
		k.add("admin.listen", "is the same as public.listen ("+k.c.Public.Listen+")",
			fmt.Sprintf("give it a port of its own, as 127.0.0.1:%d", pub.port%65535+1))
	}
	if u := k.c.Public.URL; u != "" {
		if what, mend := originProblem(u); what != "" {
			k.add("public.url", what, mend)
		}
	}
	k.tls("public.tls", k.c.Public.TLS)
	k.tls("admin.tls", k.c.Admin.TLS)
	k.keda(pub, adm)
	if k.c.Keys.Dir != "" && !k.c.Keys.Inline.Empty() {
		k.add("keys.dir", "is given together with USHER_KEYS", "keep one of the two")
	}
	if k.c.Engine.Dir == "" {
		k.add("engine.dir", "is empty", "name the data folder, as ./usher-data")
	} else if info, err := os.Stat(k.c.Engine.Dir); err == nil && !info.IsDir() {
		k.add("engine.dir", k.c.Engine.Dir+" is a file", "name a folder; it is made when it does not exist")
	}
}

type endpoint struct {
	host string
	port int
}

func (e endpoint) any() bool {
	a, err := netip.ParseAddr(e.host)
	return e.host == "" || err == nil && a.IsUnspecified()
}

func (e endpoint) loopback() bool {
	a, err := netip.ParseAddr(e.host)
	return e.host == "localhost" || err == nil && a.IsLoopback()
}

func (k *checker) listen(path, s string) (endpoint, bool) {
	e, what, mend := parseListen(s)
	if what != "" {
		k.add(path, what, mend)
		return e, false
	}
	return e, true
}

func parseListen(s string) (e endpoint, what, mend string) {
	const example = "write host:port, as 127.0.0.1:8080, or :8080 for all addresses of the machine"
	if s == "" {
		return e, "is empty", example
	}
	if _, err := strconv.Atoi(s); err == nil {
		return e, fmt.Sprintf("%q is a port without a host", s), fmt.Sprintf("write 127.0.0.1:%s, or :%s for all addresses of the machine", s, s)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return e, fmt.Sprintf("%q is not an address to listen on", s), example
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 0 || n > 65535 {
		return e, fmt.Sprintf("%q is not a port", port), "choose 1 to 65535, or 0 for a free one"
	}
	if strings.ContainsAny(host, "/ @") {
		return e, fmt.Sprintf("%q is not a host", host), example
	}
	return endpoint{host, n}, "", ""
}

func (k *checker) tls(path string, t TLS) {
	if !t.On() {
		return
	}
	if t.Cert == "" {
		k.add(path+".cert", "is missing beside key", "give both, PEM files")
	}
	if t.Key == "" {
		k.add(path+".key", "is missing beside cert", "give both, PEM files")
	}
	for key, file := range map[string]string{"cert": t.Cert, "key": t.Key} {
		if file == "" {
			continue
		}
		if info, err := os.Stat(file); err != nil {
			k.add(path+"."+key, "cannot read "+file+": "+cause(err), "check the path and who may read it")
		} else if info.IsDir() {
			k.add(path+"."+key, file+" is a folder", "name the PEM file")
		}
	}
}

// cause drops the path that os errors repeat.
func cause(err error) string {
	if i := strings.LastIndex(err.Error(), ": "); i >= 0 {
		return err.Error()[i+2:]
	}
	return err.Error()
}

func (k *checker) secrets() {
	seen := map[string]string{}
	if t := k.c.Admin.Token; !t.Empty() {
		seen[t.Reveal()] = "admin.token"
	}
	for i, t := range k.c.Service.Tokens {
		path := fmt.Sprintf("service.tokens[%d]", i)
		if first, dup := seen[t.Reveal()]; dup && !t.Empty() {
			k.add(path, "is the same as "+first, "give every user a token of its own")
			continue
		}
		seen[t.Reveal()] = path
	}
}

// originProblem checks a URL that is scheme, host and port alone.
func originProblem(s string) (what, mend string) {
	const example = "write scheme and host, as http://127.0.0.1:9000"
	if !strings.Contains(s, "://") {
		return fmt.Sprintf("%q has no scheme", s), "write http://" + s
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "is not a URL", example // err may quote a password
	case u.User != nil:
		return "holds a user name or password", "leave it out: " + u.Scheme + "://" + u.Host
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Sprintf("scheme %q is not served", u.Scheme), "use http or https"
	case u.Hostname() == "":
		return fmt.Sprintf("%q has no host", s), example
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return fmt.Sprintf("%q holds a query or fragment", s), "write " + u.Scheme + "://" + u.Host
	case u.Path != "" && u.Path != "/":
		return fmt.Sprintf("%q holds a path", s), "write " + u.Scheme + "://" + u.Host + "; paths are passed on as visitors ask for them"
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return fmt.Sprintf("%q is not a port", p), "choose 1 to 65535"
		}
	}
	return "", ""
}

func (k *checker) schedule(at string, s Schedule) {
	if s.OpensAt.IsZero() {
		if k.src.set(at + ".prequeue") {
			k.add(at+".prequeue", "is given without opens_at", "add opens_at: "+time.Now().Add(24*time.Hour).UTC().Format("2006-01-02T15:00:00Z")+", or remove it")
		}
	} else if !s.ClosesAt.IsZero() && !s.ClosesAt.After(s.OpensAt) {
		k.add(at+".closes_at", s.ClosesAt.Format(time.RFC3339)+" is not after opens_at ("+s.OpensAt.Format(time.RFC3339)+")", "check the date and the offset")
	}
}
