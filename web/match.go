package web

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web/page"
)

// entry is a room as requests meet it: made when its configuration changes, never changed after.
type entry struct {
	room        *room.Room
	cfg         room.Config
	revision    uint64
	origin      *url.URL // nil: none
	pages       *page.Pages
	cookieHTTP  string
	cookieHTTPS string
	doc         *nowDoc // its public document
}

func (e *entry) cookie(https bool) string {
	if https {
		return e.cookieHTTPS
	}
	return e.cookieHTTP
}

// rule is one match of one room.
type rule struct {
	path  string // no final slash; "" is everything; lower case if it folds
	folds bool
	entry *entry
}

func (r *rule) covers(path, folded string) bool {
	if r.folds {
		path = folded
	}
	return strings.HasPrefix(path, r.path) && (len(path) == len(r.path) || path[len(r.path)] == '/' || r.path == "")
}

// table finds rooms by id, and by host and path. It never changes.
type table struct {
	made  time.Time
	rooms map[string]*entry
	hosts map[string][]rule // longest path first
	any   []rule            // of rooms that match on every host
}

// named says whether a host is one of those on which the API has its prefix.
func (t *table) named(host string) bool { return len(t.any) > 0 || len(t.hosts[host]) > 0 }

// match finds the room in front of a path of a host, or nil: a match that names the host goes before one
// that does not, a longer path before a shorter one. path is what the origin will understand: the caller
// has dealt with escapes, dots and double slashes.
func (t *table) match(host, path string) *entry {
	folded := strings.ToLower(path)
	for _, rules := range [2][]rule{t.hosts[host], t.any} {
		for i := range rules {
			if rules[i].covers(path, folded) {
				return rules[i].entry
			}
		}
	}
	return nil
}

// originOf finds the room whose origin answers what no room of the host matches: that of the shortest path.
func (t *table) originOf(host string) *entry {
	for _, rules := range [2][]rule{t.hosts[host], t.any} {
		for i := len(rules) - 1; i >= 0; i-- {
			if rules[i].entry.origin != nil {
				return rules[i].entry
			}
		}
	}
	return nil
}

// tableAge is how old a table may be before its rooms are looked at again: another node may have changed them.
const tableAge = time.Second

// table returns the rooms as of at most tableAge ago.
func (s *Server) table() *table {
	t := s.rooms.Load()
	if t != nil && time.Since(t.made) < tableAge {
		return t
	}
	if t == nil {
		s.tableMu.Lock()
	} else if !s.tableMu.TryLock() {
		return t // somebody is at it
	}
	defer s.tableMu.Unlock()
	return s.makeTable(false)
}

// Refresh takes over changed rooms at once, and reads the operator's page folders again. Call it after
// rooms were configured by other ways than the admin API.
func (s *Server) Refresh() {
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	s.makeTable(true)
}

// makeTable is called with tableMu held.
func (s *Server) makeTable(pages bool) *table {
	old := s.rooms.Load()
	t := &table{made: time.Now(), rooms: map[string]*entry{}, hosts: map[string][]rule{}}
	if pages {
		s.folders = map[string]*page.Pages{}
	}
	for _, rm := range s.opts.Rooms.List() {
		sum := rm.Summary()
		if old != nil && !pages {
			if e := old.rooms[rm.ID()]; e != nil && e.room == rm && e.revision == sum.Revision {
				t.add(e)
				continue
			}
		}
		e := &entry{
			room: rm, cfg: sum.Config, revision: sum.Revision, pages: s.pagesOf(rm.ID(), sum.Config.Page.Dir),
			cookieHTTP: "usher-" + rm.ID(), cookieHTTPS: "__Host-usher-" + rm.ID(), doc: new(nowDoc),
		}
		if u, err := url.Parse(sum.Config.Origin); err == nil && u.Host != "" {
			e.origin = u
		}
		t.add(e)
	}
	t.sort()
	s.rooms.Store(t)
	return t
}

func (t *table) sort() {
	longest := func(a, b rule) int { return len(b.path) - len(a.path) }
	for _, rules := range t.hosts {
		slices.SortStableFunc(rules, longest)
	}
	slices.SortStableFunc(t.any, longest)
}

func (t *table) add(e *entry) {
	t.rooms[e.room.ID()] = e
	t.addRules(e)
}

func (t *table) addRules(e *entry) {
	for _, m := range e.cfg.Match {
		r := rule{path: strings.TrimRight(m.Path, "/"), folds: !e.cfg.CaseSensitive, entry: e}
		if r.folds {
			r.path = strings.ToLower(r.path)
		}
		if host := hostOnly(m.Host); host == "" {
			t.any = append(t.any, r)
		} else {
			t.hosts[host] = append(t.hosts[host], r)
		}
	}
}

// pagesOf makes the pages of a room's folder once. A folder that cannot be used leaves the built-in page.
func (s *Server) pagesOf(id, dir string) *page.Pages {
	if dir == "" {
		return s.builtin
	}
	if p := s.folders[dir]; p != nil {
		return p
	}
	p, err := page.New(dir)
	if err != nil {
		s.log.Error("the room's page folder cannot be used; the built-in page is shown", "room", id, "dir", dir, "err", err)
		p = s.builtin
	}
	s.folders[dir] = p
	return p
}
