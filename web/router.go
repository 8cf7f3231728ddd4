package web

import (
	"context"
	"errors"
	"net/http"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/ushergo/usher/room"
)

// route is one method and path of an API, as the OpenAPI document has it.
type route struct {
	method string
	path   string // with {room} or {id} for the one segment that varies
	handle func(*call)
	stream bool // open for as long as the client likes: not timed
	stat   routeStat
}

// router finds routes by hand: a path has at most one segment that varies, and a refusal must be a problem
// document, which http.ServeMux does not write.
type router struct {
	exact map[string]map[string]*route // path → method
	vary  []varying
	all   []*route
}

type varying struct {
	before, after string
	methods       map[string]*route
}

func newRouter(routes []*route) *router {
	rt := &router{exact: map[string]map[string]*route{}, all: routes}
	for _, r := range routes {
		before, after, found := strings.Cut(r.path, "{")
		var methods map[string]*route
		if !found {
			if methods = rt.exact[r.path]; methods == nil {
				methods = map[string]*route{}
				rt.exact[r.path] = methods
			}
		} else {
			_, after, _ = strings.Cut(after, "}")
			for i := range rt.vary {
				if rt.vary[i].before == before && rt.vary[i].after == after {
					methods = rt.vary[i].methods
				}
			}
			if methods == nil {
				methods = map[string]*route{}
				rt.vary = append(rt.vary, varying{before, after, methods})
			}
		}
		methods[r.method] = r
	}
	return rt
}

// lookup finds the methods of a path, and the segment that varies.
func (rt *router) lookup(path string) (map[string]*route, string) {
	if m := rt.exact[path]; m != nil {
		return m, ""
	}
	for i := range rt.vary {
		v := &rt.vary[i]
		if len(path) > len(v.before)+len(v.after) && strings.HasPrefix(path, v.before) && strings.HasSuffix(path, v.after) {
			if id := path[len(v.before) : len(path)-len(v.after)]; strings.IndexByte(id, '/') < 0 {
				return v.methods, id
			}
		}
	}
	return nil, ""
}

func (rt *router) has(path string) bool {
	m, _ := rt.lookup(path)
	return m != nil
}

// find returns the route of a request. HEAD is served by GET, and OPTIONS by the route's own answer to a
// preflight: it is handed the route that the preflight asks about.
func (rt *router) find(w http.ResponseWriter, r *http.Request, path string) (*route, string, *problem) {
	methods, id := rt.lookup(path)
	if methods == nil {
		return nil, "", nil
	}
	method := r.Method
	switch {
	case method == http.MethodHead:
		method = http.MethodGet
	case method == http.MethodOptions:
		if method = r.Header.Get("Access-Control-Request-Method"); methods[method] == nil {
			w.Header().Set("Allow", allowed(methods))
			return nil, "", &problem{status: 405, code: "method_not_allowed", detail: "use " + allowed(methods)}
		}
	}
	if found := methods[method]; found != nil {
		return found, id, nil
	}
	return nil, "", notAllowed(w, allowed(methods))
}

func allowed(methods map[string]*route) string {
	names := make([]string, 0, len(methods)+1)
	for m := range methods {
		names = append(names, m)
	}
	if methods[http.MethodGet] != nil {
		names = append(names, http.MethodHead)
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}

// finds bounds how often strangers can make the store be asked for rooms that are not followed here.
type finds struct {
	mu   sync.Mutex
	at   time.Time
	left int
}

func (f *finds) allow(now time.Time) bool {
	const perSecond = 20
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.at) >= time.Second {
		f.at, f.left = now, perSecond
	}
	f.left--
	return f.left >= 0
}

// entry finds a room by id: one that is followed, or one that another node has just made.
func (s *Server) entry(ctx context.Context, id string) (*entry, *problem) {
	if e := s.table().rooms[id]; e != nil {
		return e, nil
	}
	if !validRoomID(id) {
		return nil, noRoom(id)
	}
	if _, known := s.opts.Rooms.Lookup(id); !known {
		if !s.finds.allow(time.Now()) {
			return nil, noRoom(id)
		}
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if _, err := s.opts.Rooms.Get(ctx, id); err != nil {
			if errors.Is(err, room.ErrNotFound) {
				return nil, noRoom(id)
			}
			return nil, s.roomProblem(nil, nil, err)
		}
	}
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	if e := s.makeTable(false).rooms[id]; e != nil {
		return e, nil
	}
	return nil, noRoom(id)
}

func validRoomID(id string) bool {
	return id != "" && len(id) <= 64 && !strings.ContainsFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-'
	})
}
