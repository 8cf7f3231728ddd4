// Package routes is the routes: section of a node: requests that match one go to the instance that has their session, and
// everything else to whoever was there before.
package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
)

// Options is one element of routes:.
type Options struct {
	// Name of the route, in logs and metrics.
	ID string `yaml:"id" required:"true" pattern:"[a-z0-9-]{1,64}" patternhelp:"1 to 64 of a-z 0-9 -" example:"browsers"`
	// What the route serves; the longest path wins. The waiting rooms come before it.
	Match []Match `yaml:"match"`
	// Name that the instances have in common in the directory. Empty: the id.
	Space string `yaml:"space" pattern:"[A-Za-z0-9_.-]{0,64}" patternhelp:"up to 64 of A-Z a-z 0-9 _ . -"`
	// Where requests have their session's key.
	Key Key `yaml:"key"`
	// Instances that do not announce themselves by the service API.
	Instances []Instance `yaml:"instances"`
	// How an instance's death is noticed.
	Health Health `yaml:"health"`
	// Most sessions for an instance that announces no limit of its own. 0: no limit.
	MaxSessions int `yaml:"max_sessions" min:"0" max:"1000000"`
	// Largest body that can be sent a second time, and in which a key is looked for.
	MaxReplay int64 `yaml:"max_replay" default:"65536" min:"0" max:"16777216"`
	// Shared with the instances, which check by it that a request comes from a gateway. Danger: empty, whoever reaches an instance can pretend to be one.
	Secret string `yaml:"secret" min:"16"`
}

// Match is a host and a path with all below it.
type Match struct {
	// Host name without scheme and port. Empty: every host.
	Host string `yaml:"host" example:"app.example.com"`
	// The path and all below it.
	Path string `yaml:"path" default:"/" example:"/accounts"`
}

// Key names where the key is; of those that are set the first that the request has counts.
type Key struct {
	// Name of a header.
	Header string `yaml:"header" example:"X-Account"`
	// Name of a cookie.
	Cookie string `yaml:"cookie"`
	// Path with one segment {key}.
	Path string `yaml:"path" example:"/accounts/{key}"`
	// Name of a query parameter.
	Query string `yaml:"query"`
	// Field of a JSON body, nested by dots.
	JSON string `yaml:"json" example:"user.account"`
}

// Instance is one that does not announce itself.
type Instance struct {
	// Name that it also claims by.
	ID string `yaml:"id" required:"true" example:"b-1"`
	// Its address.
	Addr string `yaml:"addr" required:"true" example:"10.0.0.7:3000"`
	// Most sessions. 0: the route's max_sessions.
	Max int `yaml:"max" min:"0"`
}

// Health says how death is noticed.
type Health struct {
	// Path of the probe. It must not wait for sessions.
	Path string `yaml:"path" default:"/health/live"`
	// Between two probes.
	Every time.Duration `yaml:"every" default:"1s" min:"100ms" max:"1m"`
	// How long a probe may take.
	Timeout time.Duration `yaml:"timeout" default:"1s" min:"50ms" max:"1m"`
	// An instance without an answer for so long is dead. Danger: too short, a pause of a busy instance costs its sessions.
	FailAfter time.Duration `yaml:"fail_after" default:"5s" min:"500ms" max:"10m"`
}

// Routes are the routes of a node. End them with Close.
type Routes struct{ all []route }

type route struct {
	Match
	id string
	g  *gateway.Gateway
}

// New makes the routes, on one directory.
func New(opts []Options, directory affinity.Store, log *slog.Logger) (*Routes, error) {
	r := &Routes{}
	for i, o := range opts {
		if o.Space == "" {
			o.Space = o.ID
		}
		g := gateway.Options{
			Space: o.Space, Directory: directory, Key: gateway.Key(o.Key), Secret: o.Secret, Health: gateway.Health(o.Health),
			MaxReplay: o.MaxReplay, MaxSessions: o.MaxSessions, Logger: log.With("route", o.ID),
		}
		for _, in := range o.Instances {
			g.Static = append(g.Static, affinity.Instance{Owner: affinity.Identity{Instance: in.ID}, Addr: in.Addr, Max: in.Max})
		}
		gw, err := gateway.New(g)
		if err == nil && len(o.Match) == 0 {
			gw.Close()
			err = errors.New("match is missing: say which hosts and paths the route serves")
		}
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("routes[%d] (%s): %w", i, o.ID, err)
		}
		for _, m := range o.Match {
			if m.Path = strings.TrimSuffix(m.Path, "/"); m.Path != "" && !strings.HasPrefix(m.Path, "/") {
				m.Path = "/" + m.Path
			}
			m.Host = strings.ToLower(m.Host)
			r.all = append(r.all, route{m, o.ID, gw})
		}
	}
	return r, nil
}

// Close ends the gateways' probes.
func (r *Routes) Close() {
	seen := map[*gateway.Gateway]bool{}
	for _, x := range r.all {
		if !seen[x.g] {
			seen[x.g] = true
			x.g.Close()
		}
	}
}

// Stats are the gateways' figures by route.
func (r *Routes) Stats() map[string]gateway.Stats {
	m := map[string]gateway.Stats{}
	for _, x := range r.all {
		m[x.id] = x.g.Stats()
	}
	return m
}

// Handler sends what matches to its route, and the rest to next.
func (r *Routes) Handler(next http.Handler) http.Handler {
	if len(r.all) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if x := r.find(req); x != nil {
			x.g.ServeHTTP(w, req)
			return
		}
		next.ServeHTTP(w, req)
	})
}

func (r *Routes) find(req *http.Request) (best *route) {
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	for i := range r.all {
		x := &r.all[i]
		if x.Host != "" && x.Host != host {
			continue
		}
		rest, ok := strings.CutPrefix(req.URL.Path, x.Path)
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		if best == nil || len(x.Path) > len(best.Path) || len(x.Path) == len(best.Path) && x.Host != "" && best.Host == "" {
			best = x
		}
	}
	return best
}
