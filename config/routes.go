package config

import (
	"fmt"
	"net/url"
	"strings"
)

// routes checks what tags cannot say.
func (k *checker) routes() {
	seen := map[string]int{}
	for i, r := range k.c.Routes {
		at := fmt.Sprintf("routes[%d]", i)
		if first, dup := seen[r.ID]; dup && r.ID != "" {
			k.add(at+".id", fmt.Sprintf("%q is also the id of routes[%d]", r.ID, first), "give each route its own")
		}
		seen[r.ID] = i
		if len(r.Match) == 0 {
			k.add(at+".match", "is missing", "write match: [{host: app.example.com, path: /}]")
		}
		for j, m := range r.Match {
			if m.Path != "" && !strings.HasPrefix(m.Path, "/") {
				k.add(fmt.Sprintf("%s.match[%d].path", at, j), fmt.Sprintf("%q does not begin with /", m.Path), "write /"+m.Path)
			}
		}
		if r.Key == (RouteKey{}) {
			k.add(at+".key", "is missing", "say where requests have their session's key: key: {header: X-Account}, or cookie, path, query, json")
		}
		if p := r.Key.Path; p != "" && (!strings.HasPrefix(p, "/") || strings.Count(p, "{key}") != 1 || !strings.Contains(p+"/", "/{key}/")) {
			k.add(at+".key.path", fmt.Sprintf("%q has no segment {key}", p), "write it like /accounts/{key}")
		}
		if p := r.Health.Path; !strings.HasPrefix(p, "/") {
			k.add(at+".health.path", fmt.Sprintf("%q does not begin with /", p), "write /"+p)
		}
		for j, in := range r.Instances {
			addr := in.Addr
			if addr != "" && !strings.Contains(addr, "://") {
				addr = "http://" + addr
			}
			if u, err := url.Parse(addr); addr != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
				k.add(fmt.Sprintf("%s.instances[%d].addr", at, j), "is no address", "write host:port, or http://host:port")
			}
		}
	}
}
