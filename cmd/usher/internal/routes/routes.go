// Package routes is the routes: section of a node: requests that match one go to the instance that has their session, and
// everything else to whoever was there before.
package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/config"
)

// Routes are the routes of a node. End them with Close.
type Routes struct{ all []route }

type route struct {
	config.Match
	id string
	g  *gateway.Gateway
}

// New makes the routes, on one directory. trusted are the networks whose X-Forwarded-* are believed.
func New(opts []config.Route, trusted []netip.Prefix, directory affinity.Store, log *slog.Logger) (*Routes, error) {
	r := &Routes{}
	for i, o := range opts {
		if o.Space == "" {
			o.Space = o.ID
		}
		g := gateway.Options{
			Space: o.Space, Directory: directory, Key: gateway.Key(o.Key), Secret: o.Secret.Reveal(), Health: gateway.Health(o.Health),
			MaxReplay: int64(o.MaxReplay), MaxSessions: o.MaxSessions, Logger: log.With("route", o.ID),
			Trusted: func(req *http.Request) bool {
				peer, err := netip.ParseAddrPort(req.RemoteAddr)
				return err == nil && slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(peer.Addr().Unmap()) })
			},
		}
		for _, in := range o.Instances {
			g.Static = append(g.Static, affinity.Instance{Owner: affinity.Identity{Instance: in.ID}, Addr: in.Addr, Max: in.MaxSessions})
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
