package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/gate"
	"github.com/ushergo/usher/gate/gatehttp"
	"github.com/ushergo/usher/web"
	"github.com/ushergo/usher/web/svc"
)

// gates are what this node has of gates: the keys, the gate that services ask, and the gates: section.
type gates struct {
	store   gate.Store
	service *gate.Gate
	front   *fence
}

func openGates(cfg *config.Config, store gate.Store, log *slog.Logger, reg prometheus.Registerer) (*gates, error) {
	var err error
	g := &gates{store: store}
	metrics := svc.NewGateMetrics(reg)
	if g.service, err = gate.New(store, gate.Options{Logger: log, Observer: metrics}); err != nil {
		g.close()
		return nil, err
	}
	metrics.Watch(g.service)
	g.front = newFence(store, gate.Options{Logger: log, Observer: metrics, Idle: rulesIdle})
	metrics.Watch(g.front)
	if err := g.front.apply(cfg.Gates); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *gates) close() {
	if g.service != nil {
		g.service.Close()
	}
	if g.front != nil {
		g.front.close()
	}
}

// rulesIdle is how long a key of the gates: section is remembered that nobody asks for: visitors choose some of them, and
// a day of every key that a flood makes up is much memory.
const rulesIdle = 5 * time.Minute

// fence is the gates: section in front of origins. It can be replaced while requests run.
type fence struct {
	store gate.Store
	opts  gate.Options

	mu     sync.RWMutex
	list   []config.Gate
	now    *ruleset          // nil: no gates
	before map[*ruleset]bool // replaced, with requests that still run
	closed bool
}

// ruleset is the section as of one reading of the file. It is closed when it has been replaced and its requests are over.
type ruleset struct {
	rules   *gatehttp.Rules
	running sync.WaitGroup
}

func newFence(store gate.Store, opts gate.Options) *fence {
	return &fence{store: store, opts: opts, before: map[*ruleset]bool{}}
}

// apply takes over the section of a file. Requests that run or wait end as they began; where a gate kept its number of
// permits, they count with the new ones.
func (f *fence) apply(list []config.Gate) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(list) == len(f.list) && (len(list) == 0 || reflect.DeepEqual(list, f.list)) {
		return nil
	}
	var next *ruleset
	if len(list) > 0 {
		rules, err := gatehttp.NewRules(f.store, rulesOf(list), http.HandlerFunc(web.Forward), gatehttp.RulesOptions{
			ClientIP: web.VisitorAddr, Paths: web.Readings, Refuse: refuse, Gate: f.opts,
		})
		if err != nil {
			return fmt.Errorf("gates: %w", err)
		}
		next = &ruleset{rules: rules}
	}
	if old := f.now; old != nil {
		f.before[old] = true
		go func() {
			old.running.Wait()
			old.rules.Close()
			f.mu.Lock()
			delete(f.before, old)
			f.mu.Unlock()
		}()
	}
	f.now, f.list = next, list
	return nil
}

// handler is what stands in front of an origin now; nil: nothing does.
func (f *fence) handler() http.Handler {
	f.mu.RLock()
	defer f.mu.RUnlock()
	set := f.now
	if set == nil {
		return nil
	}
	set.running.Add(1)
	return set
}

// ServeHTTP answers the request that handler was asked for.
func (s *ruleset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.running.Done()
	s.rules.ServeHTTP(w, r)
}

func (f *fence) close() {
	f.mu.Lock()
	f.closed = true
	sets := []*ruleset{}
	if f.now != nil {
		sets = append(sets, f.now)
	}
	for set := range f.before {
		sets = append(sets, set)
	}
	f.mu.Unlock()
	for _, set := range sets {
		set.rules.Close()
	}
}

// Stats sums up the gates of the section.
func (f *fence) Stats() (all gate.Stats) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	add := func(set *ruleset) {
		for _, s := range set.rules.Stats() {
			all.Held += s.Held
			all.Waiting += s.Waiting
		}
	}
	if f.now != nil {
		add(f.now)
	}
	for set := range f.before {
		add(set)
	}
	return all
}

func refuse(w http.ResponseWriter, r *http.Request, err error) {
	status, code, detail, retry := gatehttp.Explain(err)
	web.Refuse(w, r, status, code, detail, retry)
}

func rulesOf(list []config.Gate) []gatehttp.Rule {
	var out []gatehttp.Rule
	for _, g := range list {
		rule := gatehttp.Rule{
			ID: g.ID, Key: g.Key, Permits: g.Permits, Wait: g.Wait, MaxWaiting: g.MaxWaiting, Lease: g.Lease, OnEngineFailure: g.OnEngineFailure,
		}
		for _, m := range g.Match {
			rule.Match = append(rule.Match, gatehttp.Match{Host: m.Host, Path: m.Path, Methods: m.Methods})
		}
		out = append(out, rule)
	}
	return out
}
