package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

// Site is what the browsers log in to. It counts what must not happen.
type Site struct {
	mu       sync.Mutex
	serial   int
	Logins   map[string]int    // by account
	Current  map[string]string // account → its last session
	active   map[string]int    // session → tasks that run on its page now
	Together int               // times that two tasks were active on one page
	Stale    int               // tasks by a session that a later login has replaced
	Tasks    int
	fences   map[string]uint64 // the greatest that each account has logged in with
	Late     int               // logins that came after a later one's, and were refused: by an instance that was cut off
}

// NewSite makes a site that nobody has visited.
func NewSite() *Site {
	return &Site{Logins: map[string]int{}, Current: map[string]string{}, active: map[string]int{}, fences: map[string]uint64{}}
}

func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	account := r.FormValue("account")
	session := ""
	if c, err := r.Cookie("session"); err == nil {
		session = c.Value
	}
	switch r.URL.Path {
	case "/login":
		// A login that was on its way while its instance was killed or lost the session can come after its successor's. Who
		// keeps accounts can tell by the fence, and nobody else can.
		fence, err := strconv.ParseUint(r.FormValue("fence"), 10, 64)
		if err != nil || fence < s.fences[account] {
			s.Late++
			http.Error(w, "a later session has logged in", http.StatusConflict)
			return
		}
		s.fences[account] = fence
		s.serial++
		s.Logins[account]++
		session = fmt.Sprint(account, "-", s.serial)
		s.Current[account] = session
		http.SetCookie(w, &http.Cookie{Name: "session", Value: session, Path: "/"})
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><title>%s</title><p id=who>%s</p>", account, session)
	case "/begin":
		s.Tasks++
		if s.active[session]++; s.active[session] > 1 {
			s.Together++
		}
		if s.Current[account] != session {
			s.Stale++
		}
		_ = json.NewEncoder(w).Encode(session)
	case "/end":
		s.active[session]--
	default:
		http.NotFound(w, r)
	}
}
