package config

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"
)

func (k *checker) rooms() {
	ids := map[string]int{}
	matches := map[string][]takenMatch{}
	for i := range k.c.Rooms {
		r, at := &k.c.Rooms[i], fmt.Sprintf("rooms[%d]", i)
		if first, dup := ids[r.ID]; dup && r.ID != "" {
			k.add(at+".id", fmt.Sprintf("%q is already the id of rooms[%d]", r.ID, first), "give every room an id of its own")
		} else {
			ids[r.ID] = i
		}
		k.room(at, r)
		k.matches(at, r, matches)
	}
}

func (k *checker) room(at string, r *Room) {
	if c := r.Capacity; c.Active == 0 && c.PerInstance == 0 && c.RatePerMinute == 0 && r.Queue.Order != "passthrough" {
		k.add(at+".capacity", "bounds nothing", "write capacity: {active: 600}, the most sessions at one moment, or give per_instance or rate_per_minute; to hold everybody for a while, pause the room")
	}
	if r.Origin != "" {
		if what, mend := originProblem(r.Origin); what != "" {
			k.add(at+".origin", what, mend)
		}
		if len(r.Match) == 0 {
			k.add(at+".match", "is missing beside origin", "say what the room protects: match: [{path: /}]")
		}
	}
	if r.Session.Max < r.Session.Idle {
		k.add(at+".session.max", fmt.Sprintf("%s is shorter than idle (%s)", formatDuration(r.Session.Max), formatDuration(r.Session.Idle)), "make max the longer one")
	}
	if r.Session.Claim > r.Session.Max {
		k.add(at+".session.claim", fmt.Sprintf("%s is longer than max (%s)", formatDuration(r.Session.Claim), formatDuration(r.Session.Max)), "shorten it, or write 0 to switch it off")
	}
	k.collapse(at+".collapse", r)
	k.schedule(at+".schedule", r.Schedule)
	k.cors(at+".cors", r.CORS)
	if dir := r.Page.Dir; dir != "" {
		if info, err := os.Stat(dir); err != nil {
			k.add(at+".page.dir", "cannot read "+dir+": "+cause(err), "give the path of the folder; relative paths begin where usher is started")
		} else if !info.IsDir() {
			k.add(at+".page.dir", dir+" is a file", "name the folder it is in")
		}
	}
	k.instances(at+".instances", r)
}

func (k *checker) cors(at string, list []string) {
	seen := map[string]bool{}
	for i, o := range list {
		path := fmt.Sprintf("%s[%d]", at, i)
		if o == "*" {
			k.add(path, "* would let every site act for your visitors", "name the origins, as https://app.example.com")
			continue
		}
		if what, mend := originProblem(o); what != "" {
			k.add(path, what, mend)
		} else if strings.HasSuffix(o, "/") {
			k.add(path, fmt.Sprintf("%q ends with a slash, which browsers never send", o), "write "+strings.TrimRight(o, "/"))
		} else if o != strings.ToLower(o) {
			k.add(path, fmt.Sprintf("%q has capitals, which browsers never send", o), "write "+strings.ToLower(o))
		}
		if seen[o] {
			k.add(path, fmt.Sprintf("%q is listed twice", o), "remove it")
		}
		seen[o] = true
	}
}

// matches checks the form of each match, and that no two rooms claim the same
// page. One path below another is no conflict: the more specific one wins.
func (k *checker) matches(at string, r *Room, taken map[string][]takenMatch) {
	for i, m := range r.Match {
		path := fmt.Sprintf("%s.match[%d]", at, i)
		hostOK := k.host(path+".host", m.Host)
		if what, mend := pathProblem(m.Path); what != "" {
			k.add(path+".path", what, mend)
			continue
		}
		if !hostOK {
			continue
		}
		// Without case_sensitive, /Sale and /sale are one page; two rooms meet as
		// soon as one of them folds.
		host, p := strings.ToLower(m.Host), strings.TrimRight(m.Path, "/")
		folded := host + " " + strings.ToLower(p)
		for _, t := range taken[folded] {
			if t.path == p || t.room != r.ID && (t.folds || !r.CaseSensitive) {
				k.add(path, fmt.Sprintf("%s is already matched by room %q", showMatch(m), t.room), "give the page to one room")
				break
			}
		}
		taken[folded] = append(taken[folded], takenMatch{r.ID, p, !r.CaseSensitive})
	}
}

type takenMatch struct {
	room, path string
	folds      bool
}

func showMatch(m Match) string {
	if m.Host == "" {
		return m.Path + " on every host"
	}
	return m.Host + m.Path
}

func (k *checker) host(path, h string) bool {
	switch {
	case h == "":
		return true
	case strings.Contains(h, "://"):
		k.add(path, fmt.Sprintf("%q holds a scheme", h), "write the host alone, as tickets.example.com")
	case strings.Contains(h, "*"):
		k.add(path, "wildcards are not served", "list the hosts, or leave host out to match every host")
	case strings.Contains(h, "/"):
		k.add(path, fmt.Sprintf("%q holds a path", h), "write it as path")
	case !isAddr(h) && strings.Contains(h, ":"):
		k.add(path, fmt.Sprintf("%q holds a port", h), "leave the port out: every port is served")
	case !isAddr(h) && !hostName(h):
		k.add(path, fmt.Sprintf("%q is not a host name", h), "use letters, digits, hyphens and dots; other scripts in their xn-- form")
	default:
		return true
	}
	return false
}

func isAddr(h string) bool { _, err := netip.ParseAddr(h); return err == nil }

func hostName(h string) bool {
	if len(h) > 253 {
		return false
	}
	for label := range strings.SplitSeq(h, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range label {
			if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return false
			}
		}
	}
	return true
}

// pathProblem allows only paths that mean the same to usher and to any origin.
func pathProblem(p string) (what, mend string) {
	switch {
	case !strings.HasPrefix(p, "/"):
		return fmt.Sprintf("%q does not begin with a slash", p), "write /" + p
	case strings.ContainsAny(p, "?#"):
		return fmt.Sprintf("%q holds a query or fragment", p), "write the path alone"
	case strings.ContainsAny(p, "*"):
		return fmt.Sprintf("%q holds a wildcard", p), "a path matches itself and all below it: leave the * out"
	case strings.Contains(p, "%"):
		return fmt.Sprintf("%q is percent-encoded", p), "write the letters themselves"
	case strings.ContainsAny(p, ";\\") || strings.Contains(p, "//"):
		return fmt.Sprintf("%q means different pages to different servers", p), "write it without ; \\ and //"
	case strings.Contains(p+"/", "/./") || strings.Contains(p+"/", "/../"):
		return fmt.Sprintf("%q holds . or .. steps", p), "write the path they lead to"
	case p == "/.usher" || strings.HasPrefix(p, "/.usher/"):
		return fmt.Sprintf("%q is usher's own", p), "choose a path of the origin"
	}
	return "", ""
}

func (k *checker) warnings() {
	c := k.c
	if e, what, _ := parseListen(c.Admin.Listen); what == "" && !e.loopback() && !c.Admin.TLS.On() {
		k.add("admin.listen", "the admin API listens beyond this machine without TLS: its token travels readable", "listen on 127.0.0.1, or give admin.tls")
	}
	if c.Public.URL != "" && len(c.TrustedProxies) == 0 && !c.Public.TLS.On() && strings.HasPrefix(c.Public.URL, "https:") {
		k.add("public.url", "a proxy stands in front, but no network is trusted: every visitor seems to come from the proxy", "list the proxy's network in trusted_proxies")
	}
	for i, p := range c.TrustedProxies {
		if p.Bits() == 0 {
			k.add(fmt.Sprintf("trusted_proxies[%d]", i), "trusts everybody: any visitor may claim any address", "name the proxy's own network")
		}
	}
	for _, path := range []string{"admin.token", "service.tokens[0]", "engine.password", "engine.sentinel_password"} {
		if k.src.open && k.src.set(path) {
			k.add(path, "stands in a file that others may read", "chmod 600 "+k.src.file+", or use the environment")
		}
	}
	if c.Engine.Durability == "none" {
		k.add("engine.durability", "none: all places are lost when usher stops", "use sync for real visitors")
	}
	if k.src.file != "" && len(c.Rooms)+len(c.Gates)+len(c.Routes)+len(c.Relay) == 0 && !c.Keeper.On {
		k.add("", "names no room, no gate and no route: usher would stand in front of nothing", "begin with rooms: [{id: main, origin: http://127.0.0.1:9000, match: [{path: /}], capacity: {active: 600}}]")
	}
	hostOrigin := map[string]string{}
	for i := range c.Rooms {
		k.roomWarnings(fmt.Sprintf("rooms[%d]", i), &c.Rooms[i], hostOrigin)
	}
	k.gateWarnings(hostOrigin)
	k.collapseWarnings(hostOrigin)
}

func (k *checker) roomWarnings(at string, r *Room, hostOrigin map[string]string) {
	if r.Queue.Grace < 3*time.Minute && (r.Queue.Order == "fifo" || r.Queue.Order == "random") && k.src.set(at+".queue.grace") {
		k.add(at+".queue.grace", fmt.Sprintf("%s is short: hidden tabs and sleeping phones are heard from once a minute or less, and would lose their place", formatDuration(r.Queue.Grace)), "3m or more is safe")
	}
	if !r.Schedule.ClosesAt.IsZero() && r.Schedule.ClosesAt.Before(time.Now()) {
		k.add(at+".schedule.closes_at", "has passed: the room is closed", "set a new time, or remove it")
	}
	if r.OnEngineFailure == "open" {
		k.add(at+".on_engine_failure", "open: while state cannot be reached, the limit is not kept", "use admitted to let in only those who were")
	}
	if r.Origin != "" {
		for _, m := range r.Match {
			if first, ok := hostOrigin[m.Host]; ok && first != r.Origin {
				k.add(at+".origin", "differs from "+first+" of an earlier room on the same host; paths that match no room go to the earlier one", "match / in the room whose origin should have them")
			} else {
				hostOrigin[m.Host] = r.Origin
			}
		}
	}
	if c := r.Capacity; c.PerInstance > c.Active && c.Active > 0 {
		k.add(at+".capacity.per_instance", fmt.Sprintf("%d is more than active (%d) and so never matters", c.PerInstance, c.Active), "lower it, or raise active")
	}
}
