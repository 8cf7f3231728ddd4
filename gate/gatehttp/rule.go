package gatehttp

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ushergo/usher/gate"
)

// Rule is one entry of the gates: section: at most Permits requests of one key run at once on what it matches.
//
//	gates:
//	  - id: checkout                       # [a-z0-9-]{1,64}; part of the keys
//	    match: [{host: tickets.test, path: /checkout, methods: [POST]}]
//	    key: "header:X-Account"            # all | ip | path | header:NAME | cookie:NAME | query:NAME
//	    permits: 20                        # requests of one key at once, over all nodes
//	    wait: 100ms                        # 0s: 429 at once
//	    max_waiting: 1000                  # of one key on one node
//	    lease: 30s                         # how long a crashed node's requests count on
//	    on_engine_failure: closed          # closed: 503 | open: nothing is limited
type Rule struct {
	ID    string  `json:"id"`
	Match []Match `json:"match"`
	// Key says which requests count together. A request without that header, cookie or parameter counts with the
	// others that have none. Default: all.
	Key     string `json:"key"`
	Permits int    `json:"permits"` // 1 to gate.MaxLimit; required
	// Wait is how long a request waits for its turn; 0: not at all.
	Wait time.Duration `json:"wait"`
	// MaxWaiting bounds who waits for one key on this node; default 1000.
	MaxWaiting int `json:"max_waiting"`
	// Lease is how long the requests of a crashed node count on; those that run are extended. Default 30 s, at least 1 s.
	Lease time.Duration `json:"lease"`
	// OnEngineFailure is closed (503) or open. Danger of open: nothing is limited then. Default closed.
	OnEngineFailure string `json:"on_engine_failure"`
}

// Match is where a rule applies: a host ("" is every one), a path and all below it, and methods (none is all).
type Match struct {
	Host    string   `json:"host"`
	Path    string   `json:"path"`
	Methods []string `json:"methods"`
}

var (
	ruleID   = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	ruleName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
)

// Validate returns every fault, each naming field and mend, joined.
func (r Rule) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("gate %q: %s: %s", r.ID, field, fmt.Sprintf(format, args...)))
	}
	if !ruleID.MatchString(r.ID) {
		bad("id", "must be 1 to 64 of a-z 0-9 -")
	}
	if len(r.Match) == 0 {
		bad("match", "says where the gate stands; write [{path: /}] for everywhere")
	}
	for i, m := range r.Match {
		if !strings.HasPrefix(m.Path, "/") {
			bad(fmt.Sprintf("match[%d].path", i), "is %q, must begin with /", m.Path)
		}
		for _, method := range m.Methods {
			if method != strings.ToUpper(method) || !ruleName.MatchString(method) {
				bad(fmt.Sprintf("match[%d].methods", i), "%q is no method; write GET, POST, …", method)
			}
		}
	}
	if _, err := r.keyFunc(nil); err != nil {
		bad("key", "%v", err)
	}
	if r.Permits < 1 || r.Permits > gate.MaxLimit {
		bad("permits", "is %d, must be 1 to %d", r.Permits, gate.MaxLimit)
	}
	if r.Wait < 0 || r.Wait > time.Minute {
		bad("wait", "is %v, must be 0s to 1m", r.Wait)
	}
	if r.MaxWaiting < 0 {
		bad("max_waiting", "is %d, must not be negative", r.MaxWaiting)
	}
	if r.Lease != 0 && (r.Lease < time.Second || r.Lease > time.Hour) {
		bad("lease", "is %v, must be 1s to 1h", r.Lease)
	}
	if !slices.Contains([]string{"", "closed", "open"}, r.OnEngineFailure) {
		bad("on_engine_failure", "is %q, must be closed or open", r.OnEngineFailure)
	}
	return errors.Join(errs...)
}

func (r Rule) keyFunc(clientIP func(*http.Request) string) (func(*http.Request) string, error) {
	kind, name, named := strings.Cut(r.Key, ":")
	if named && !ruleName.MatchString(name) {
		return nil, fmt.Errorf("%q names nothing; write %s:NAME", r.Key, kind)
	}
	switch {
	case r.Key == "" || r.Key == "all":
		return func(*http.Request) string { return "" }, nil
	case r.Key == "ip":
		return clientIP, nil
	case r.Key == "path":
		return func(req *http.Request) string { return cleaned(req) }, nil
	case kind == "header" && named:
		return func(req *http.Request) string { return req.Header.Get(name) }, nil
	case kind == "cookie" && named:
		return func(req *http.Request) string {
			c, err := req.Cookie(name)
			if err != nil {
				return ""
			}
			return c.Value
		}, nil
	case kind == "query" && named:
		return func(req *http.Request) string { return req.URL.Query().Get(name) }, nil
	}
	return nil, fmt.Errorf("is %q, must be all, ip, path, header:NAME, cookie:NAME or query:NAME", r.Key)
}

// Rules stand in front of a site. Close them when the site has stopped.
type Rules struct {
	rules []limited
	next  http.Handler
	paths func(*http.Request) []string // nil: the URL's
}

type limited struct {
	rule  Rule
	gate  *gate.Gate
	serve http.Handler // acquires, then goes on with the rules after it
}

// RulesOptions of NewRules. The zero value works.
type RulesOptions struct {
	// ClientIP is the visitor's address, for key ip. Default: the connection's, which behind a proxy is the proxy's.
	ClientIP func(*http.Request) string
	// Paths are all the ways in which the origin may read the path of a request; a rule applies when one of them matches.
	// Default: the path of its URL.
	Paths func(*http.Request) []string
	// Refuse answers who was not let in. Default: Refuse.
	Refuse func(w http.ResponseWriter, r *http.Request, err error)
	// Gate are the options of each rule's gate; Logger, Observer and Idle count.
	Gate gate.Options
}

// NewRules makes a handler that applies every rule that matches, in order, and then calls next. Keys
// in the store are gate-{id}:….
func NewRules(store gate.Store, rules []Rule, next http.Handler, o RulesOptions) (*Rules, error) {
	if o.ClientIP == nil {
		o.ClientIP = func(r *http.Request) string {
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			if err != nil {
				return r.RemoteAddr
			}
			return host
		}
	}
	rs := &Rules{next: next, paths: o.Paths}
	var errs []error
	seen := map[string]bool{}
	for _, r := range rules {
		if err := r.Validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		if seen[r.ID] {
			errs = append(errs, fmt.Errorf("gate %q: id: is there twice", r.ID))
			continue
		}
		seen[r.ID] = true
		l, err := rs.limit(store, r, len(rs.rules), o)
		if err != nil {
			errs = append(errs, fmt.Errorf("gate %q: %w", r.ID, err))
			continue
		}
		rs.rules = append(rs.rules, l)
	}
	if err := errors.Join(errs...); err != nil {
		rs.Close()
		return nil, err
	}
	return rs, nil
}

func (rs *Rules) limit(store gate.Store, r Rule, i int, o RulesOptions) (limited, error) {
	opts := o.Gate
	opts.Permits, opts.Lease, opts.Wait, opts.MaxWaiting = r.Permits, r.Lease, r.Wait, r.MaxWaiting
	if opts.Lease == 0 {
		opts.Lease = gate.DefaultLease
	}
	if opts.Wait == 0 {
		opts.Wait = -1
	}
	if opts.MaxWaiting == 0 {
		opts.MaxWaiting = 1000
	}
	g, err := gate.New(store, opts)
	if err != nil {
		return limited{}, err
	}
	of, err := r.keyFunc(o.ClientIP)
	if err != nil {
		return limited{}, err
	}
	// The number of permits is part of the key: a changed rule begins with fresh keys, for those that acquires made keep
	// the limit they were made with.
	prefix := fmt.Sprintf("gate-%s:%d:", r.ID, r.Permits)
	key := func(req *http.Request) string { return prefix + of(req) }
	rest := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { rs.from(i+1, w, req) })
	return limited{r, g, Handler(g, key, rest, Options{Lease: opts.Lease, Open: r.OnEngineFailure == "open", Refuse: o.Refuse})}, nil
}

// Close sends away who waits.
func (rs *Rules) Close() {
	for _, l := range rs.rules {
		l.gate.Close()
	}
}

// Stats are the figures of each rule, by its id.
func (rs *Rules) Stats() map[string]gate.Stats {
	m := make(map[string]gate.Stats, len(rs.rules))
	for _, l := range rs.rules {
		m[l.rule.ID] = l.gate.Stats()
	}
	return m
}

func (rs *Rules) ServeHTTP(w http.ResponseWriter, r *http.Request) { rs.from(0, w, r) }

func (rs *Rules) from(i int, w http.ResponseWriter, r *http.Request) {
	for ; i < len(rs.rules); i++ {
		if rs.rules[i].rule.matches(r, rs.paths) {
			rs.rules[i].serve.ServeHTTP(w, r)
			return
		}
	}
	rs.next.ServeHTTP(w, r)
}

// cleaned is the path as an origin that is generous with slashes, dots, parameters and case would see it: a limit is not
// evaded by spelling.
func cleaned(r *http.Request) string {
	return cleanPath(r.URL.Path)
}

func cleanPath(p string) string {
	segments := strings.Split(strings.ReplaceAll(p, "\\", "/"), "/")
	for i := range segments {
		segments[i], _, _ = strings.Cut(segments[i], ";")
	}
	return strings.ToLower(path.Clean("/" + strings.Join(segments, "/")))
}

func (r Rule) matches(req *http.Request, paths func(*http.Request) []string) bool {
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(host, ".")
	all := []string{req.URL.Path}
	if paths != nil {
		all = paths(req)
	}
	return slices.ContainsFunc(all, func(p string) bool { return r.covers(host, req.Method, cleanPath(p)) })
}

func (r Rule) covers(host, method, at string) bool {
	return slices.ContainsFunc(r.Match, func(m Match) bool {
		below := strings.ToLower(strings.TrimSuffix(m.Path, "/"))
		return (m.Host == "" || strings.EqualFold(m.Host, host)) &&
			(below == "" || at == below || strings.HasPrefix(at, below+"/")) &&
			(len(m.Methods) == 0 || slices.Contains(m.Methods, method))
	})
}
