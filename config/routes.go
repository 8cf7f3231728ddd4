package config

import (
	"fmt"
	"net/url"
	"strings"
)

// routes checks what tags cannot say.
func (k *checker) routes() {
	seen, taken := map[string]int{}, map[Match]string{}
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
			path := fmt.Sprintf("%s.match[%d]", at, j)
			if !k.host(path+".host", m.Host) {
				continue
			}
			page := Match{Host: strings.ToLower(m.Host), Path: strings.TrimRight(m.Path, "/")}
			if other, dup := taken[page]; dup {
				k.add(path, fmt.Sprintf("%s is already matched by route %q", showMatch(m), other), "give the page to one route")
			}
			taken[page] = r.ID
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
		if h := r.Health; h.FailAfter < h.Every {
			k.add(at+".health.fail_after", fmt.Sprintf("%s is less than every (%s)", formatDuration(h.FailAfter), formatDuration(h.Every)),
				"make it longer, so that one probe may be lost")
		}
		names := map[string]bool{}
		for j, in := range r.Instances {
			if names[in.ID] && in.ID != "" {
				k.add(fmt.Sprintf("%s.instances[%d].id", at, j), fmt.Sprintf("%q is given twice", in.ID), "give each instance its own")
			}
			names[in.ID] = true
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
