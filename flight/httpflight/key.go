package httpflight

import (
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Key is what equal requests have in common.
type Key struct {
	Method, Host, Path, Query string
	Origin                    string // scheme and host that a Transport's request goes to
	Headers                   string // names and values, each with its length before it
	Principal                 string
	Known                     bool // there is a principal, who may be ""
}

// keyer makes keys by Options.
type keyer struct {
	opts    Options
	headers []string // canonical, sorted
}

func newKeyer(o Options) *keyer {
	k := &keyer{opts: o}
	for _, h := range slices.Concat(o.Headers, alwaysHeaders) {
		k.headers = append(k.headers, textproto.CanonicalMIMEHeaderKey(h))
	}
	slices.Sort(k.headers)
	k.headers = slices.Compact(k.headers)
	if k.opts.Query != nil {
		k.opts.Query = slices.Compact(slices.Sorted(slices.Values(k.opts.Query)))
	}
	return k
}

// covers: the header of that canonical name is part of the key.
func (k *keyer) covers(name string) bool {
	_, ok := slices.BinarySearch(k.headers, name)
	return ok
}

// key is r's key, or false when r must pass by.
func (k *keyer) key(r *http.Request) (Key, bool) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return Key{}, false
	}
	h := r.Header
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 || len(h["Range"]) > 0 || len(h["Expect"]) > 0 || len(h["Upgrade"]) > 0 {
		return Key{}, false
	}
	key := Key{Method: r.Method, Host: strings.ToLower(r.Host), Path: path(r.URL)}
	if r.URL.Host != "" {
		key.Origin = r.URL.Scheme + "://" + r.URL.Host
		if key.Host == "" {
			key.Host = strings.ToLower(r.URL.Host)
		}
	}
	var ok bool
	if key.Principal, key.Known = k.principal(r); !key.Known && k.credentials(h) {
		return Key{}, false
	}
	if key.Query, ok = k.query(r.URL.RawQuery); !ok {
		return Key{}, false
	}
	key.Headers = k.values(h)
	return key, true
}

// path is the path as it is sent.
func path(u *url.URL) string {
	if u.Opaque != "" {
		return u.Opaque
	}
	return u.EscapedPath()
}

func (k *keyer) principal(r *http.Request) (string, bool) {
	if k.opts.Principal != nil {
		return k.opts.Principal(r)
	}
	if k.opts.PrincipalHeader == "" {
		return "", false
	}
	vs := r.Header[textproto.CanonicalMIMEHeaderKey(k.opts.PrincipalHeader)]
	if len(vs) != 1 || vs[0] == "" { // none, or two that contradict each other
		return "", false
	}
	return vs[0], true
}

// credentials: h carries something by which the origin may tell clients apart.
func (k *keyer) credentials(h http.Header) bool {
	if len(h["Authorization"]) > 0 || len(h["Proxy-Authorization"]) > 0 {
		return true
	}
	for _, line := range h["Cookie"] {
		for c := range strings.SplitSeq(line, ";") {
			if name, _, _ := strings.Cut(strings.TrimSpace(c), "="); !k.ignored(name) {
				return true
			}
		}
	}
	return false
}

func (k *keyer) ignored(name string) bool {
	for _, p := range k.opts.IgnoreCookies {
		if prefix, many := strings.CutSuffix(p, "*"); name == p || many && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// stripIgnored takes the cookies that did not count out of a shared request's header.
func (k *keyer) stripIgnored(h http.Header) {
	lines := h["Cookie"]
	if len(lines) == 0 {
		return
	}
	var kept []string
	for _, line := range lines {
		for c := range strings.SplitSeq(line, ";") {
			c = strings.TrimSpace(c)
			if name, _, _ := strings.Cut(c, "="); c != "" && !k.ignored(name) {
				kept = append(kept, c)
			}
		}
	}
	if len(kept) == 0 {
		delete(h, "Cookie")
		return
	}
	h["Cookie"] = []string{strings.Join(kept, "; ")}
}

// query is the part of a raw query that counts. A query that cannot be read, or that others may read otherwise (";"),
// makes the request pass by if parameters are chosen.
func (k *keyer) query(raw string) (string, bool) {
	if k.opts.Query == nil {
		return raw, true
	}
	if raw == "" || len(k.opts.Query) == 0 {
		return "", true
	}
	all, err := url.ParseQuery(raw)
	if err != nil {
		return "", false
	}
	var b strings.Builder
	for _, name := range k.opts.Query {
		if vs, ok := all[name]; ok {
			frame(&b, name, vs)
		}
	}
	return b.String(), true
}

func (k *keyer) values(h http.Header) string {
	var b strings.Builder
	for _, name := range k.headers {
		if vs := h[name]; len(vs) > 0 {
			frame(&b, name, vs)
		}
	}
	return b.String()
}

// frame writes a name and its values so that no two lists are written alike.
func frame(b *strings.Builder, name string, vs []string) {
	var n [20]byte
	b.WriteString(name)
	b.WriteByte(' ')
	b.Write(strconv.AppendInt(n[:0], int64(len(vs)), 10))
	for _, v := range vs {
		b.WriteByte(' ')
		b.Write(strconv.AppendInt(n[:0], int64(len(v)), 10))
		b.WriteByte(':')
		b.WriteString(v)
	}
	b.WriteByte('\n')
}
