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
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/web"
)

// Routes are the routes of a node. End them with Close. Safe for concurrent use.
type Routes struct {
	trusted   []netip.Prefix
	directory affinity.Store
	log       *slog.Logger

	now atomic.Pointer[table]

	changing sync.Mutex // held by Apply and Close
	closed   chan struct{}
	old      sync.WaitGroup // gateways whose last requests run
}

// table are the routes that count at one moment.
type table struct {
	all []match
	of  []made
}

// made is a route with its gateway.
type made struct {
	conf config.Route
	opts gateway.Options
	g    *gateway.Gateway
}

type match struct {
	config.Match
	g *gateway.Gateway
}

// New makes the routes, on one directory. trusted are the networks whose X-Forwarded-* are believed.
func New(opts []config.Route, trusted []netip.Prefix, directory affinity.Store, log *slog.Logger) (*Routes, error) {
	r := &Routes{trusted: trusted, directory: directory, log: log, closed: make(chan struct{})}
	r.now.Store(&table{})
	if err := r.Apply(opts); err != nil {
		return nil, err
	}
	return r, nil
}

// Apply puts other routes in the place of those there are. A route that says the same keeps what it knows. Requests that
// run go on as they began. After an error everything is as it was.
func (r *Routes) Apply(opts []config.Route) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	before, next := r.now.Load(), &table{}
	var fresh []*gateway.Gateway
	kept := map[*gateway.Gateway]bool{}
	for i, o := range opts {
		m := made{conf: o}
		if j := slices.IndexFunc(before.of, func(b made) bool { return sameGateway(b.conf, o) }); j >= 0 && len(o.Match) > 0 {
			m.opts, m.g = before.of[j].opts, before.of[j].g
			kept[m.g] = true
		} else if err := r.make(&m); err != nil {
			for _, g := range fresh {
				g.Close()
			}
			return fmt.Errorf("routes[%d] (%s): %w", i, o.ID, err)
		} else {
			fresh = append(fresh, m.g)
		}
		next.of = append(next.of, m)
		for _, at := range o.Match {
			if at.Path = strings.TrimSuffix(at.Path, "/"); at.Path != "" && !strings.HasPrefix(at.Path, "/") {
				at.Path = "/" + at.Path
			}
			at.Host = strings.ToLower(at.Host)
			next.all = append(next.all, match{at, m.g})
		}
	}
	r.now.Store(next)
	for _, m := range before.of {
		if !kept[m.g] {
			r.old.Go(func() { r.retire(m.g) })
		}
	}
	return nil
}

// sameGateway says whether two routes differ in no more than what they match.
func sameGateway(a, b config.Route) bool {
	a.Match, b.Match = nil, nil
	return reflect.DeepEqual(a, b)
}

func (r *Routes) make(m *made) (err error) {
	o := m.conf
	if len(o.Match) == 0 {
		return errors.New("match is missing: say which hosts and paths the route serves")
	}
	if o.Space == "" {
		o.Space = o.ID
	}
	m.opts = gateway.Options{
		Space: o.Space, Directory: r.directory, Key: gateway.Key(o.Key), Secret: o.Secret.Reveal(), Health: gateway.Health(o.Health),
		MaxReplay: int64(o.MaxReplay), MaxSessions: o.MaxSessions, Logger: r.log.With("route", o.ID),
		Trusted: func(req *http.Request) bool {
			peer, err := netip.ParseAddrPort(req.RemoteAddr)
			return err == nil && slices.ContainsFunc(r.trusted, func(p netip.Prefix) bool { return p.Contains(peer.Addr().Unmap()) })
		},
	}
	for _, in := range o.Instances {
		m.opts.Static = append(m.opts.Static, affinity.Instance{Owner: affinity.Identity{Instance: in.ID}, Addr: in.Addr, Max: in.MaxSessions})
	}
	m.g, err = gateway.New(m.opts)
	return err
}

// retire closes a gateway after its last request. Until then it finds out when an instance dies, and cuts its clients off.
func (r *Routes) retire(g *gateway.Gateway) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for g.Running() > 0 {
		select {
		case <-tick.C:
		case <-r.closed:
			g.Close()
			return
		}
	}
	g.Close()
}

// Close ends the gateways' probes. It is called once.
func (r *Routes) Close() {
	r.changing.Lock()
	defer r.changing.Unlock()
	close(r.closed)
	r.old.Wait()
	for _, m := range r.now.Load().of {
		m.g.Close()
	}
}

// Stats are the gateways' figures by route.
func (r *Routes) Stats() map[string]gateway.Stats {
	all := map[string]gateway.Stats{}
	for _, m := range r.now.Load().of {
		all[m.conf.ID] = m.g.Stats()
	}
	return all
}

// List is what the admin API shows.
func (r *Routes) List() []web.Route {
	var all []web.Route
	for _, m := range r.now.Load().of {
		all = append(all, web.Route{ID: m.conf.ID, Space: m.opts.Space, Static: m.opts.Static})
	}
	return all
}

// Handler sends what matches to its route, and the rest to next.
func (r *Routes) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if all := r.now.Load().all; len(all) > 0 {
			if m := find(all, req); m != nil {
				m.g.ServeHTTP(w, req)
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}

func find(all []match, req *http.Request) (best *match) {
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	for i := range all {
		x := &all[i]
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
