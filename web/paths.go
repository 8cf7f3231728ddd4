package web

import (
	"net/url"
	"slices"
	"strings"
)

// A proxy that decides by one reading of a path while the origin goes by another can be walked around:
// /%73ale, //sale, /sale;x and /x/../sale are all the sale to some origin. So a path is decided by every
// reading that an origin could make of it: whatever matches a room makes it that room's, and a path that
// is two rooms' is refused. A reading that matches nothing frees nothing.

const (
	maxOddPath  = 4096 // bytes; a longer path that can be read in several ways is refused
	maxReadings = 32   // more ways than this are nobody's honest path
)

// decide finds the room in front of a path of a host; nil: none.
func (t *table) decide(host string, u *url.URL) (*entry, *problem) {
	switch {
	case u.Opaque == "" && u.Path == "" && u.Host != "": // GET http://host
		return t.match(host, "/"), nil
	case u.Opaque != "" || u.Path == "" || u.Path[0] != '/':
		return nil, ambiguous("it does not begin with a slash")
	}
	if isPlain(u.Path) && !keepsSlash(u.RawPath) {
		return t.match(host, u.Path), nil
	}
	all, why := readings(u)
	if why != "" {
		return nil, ambiguous(why)
	}
	var found *entry
	for _, path := range all {
		switch e := t.match(host, path); {
		case e == nil || e == found:
		case found == nil:
			found = e
		default:
			return nil, ambiguous("it can be read as a page of room " + found.cfg.ID + " and as one of room " + e.cfg.ID)
		}
	}
	return found, nil
}

func ambiguous(why string) *problem {
	return &problem{status: 400, code: "path_ambiguous", detail: "the path cannot be decided: " + why +
		"; ask for it in its plain form, without //, .., ; or doubly encoded characters"}
}

// isPlain says whether a decoded path can be read in one way alone.
func isPlain(path string) bool {
	start := 1
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			switch c := path[i]; {
			case c < 0x20, c == 0x7f, c == '%', c == ';', c == '\\', c == '?', c == '#':
				return false
			}
			continue
		}
		if i == start {
			if i < len(path) { // "//"
				return false
			}
		} else if end := path[i-1]; end == '.' || end == ' ' { // a step, or what Windows drops
			return false
		}
		start = i + 1
	}
	return true
}

// keepsSlash says whether a path as it came has a slash that some origins do not take for a separator.
func keepsSlash(raw string) bool {
	return raw != "" && strings.Contains(strings.ToLower(raw), "%2f")
}

// readings are all the ways to read a path, or why it may not be read at all.
func readings(u *url.URL) (all []string, why string) {
	if len(u.Path) > maxOddPath {
		return nil, "it is odd and very long"
	}
	add := func(s string, ok bool) string {
		switch {
		case !ok:
			return "it climbs above the root"
		case strings.ContainsFunc(s, isControl):
			return "it holds control characters"
		case slices.Contains(all, s):
			return ""
		case len(all) == maxReadings:
			return "it can be read in too many ways"
		}
		all = append(all, s)
		return ""
	}
	if why = add(u.Path, true); why != "" {
		return nil, why
	}
	if keepsSlash(u.RawPath) {
		if why = add(decode(u.RawPath, true), true); why != "" {
			return nil, why
		}
	}
	for i := 0; i < len(all); i++ { // every way to read what was read: all grows until nothing new comes
		for _, read := range [...]func(string) (string, bool){
			collapse, resolve, withoutParams, decodeAgain, slashes, cutQuery, trimmed,
		} {
			if why = add(read(all[i])); why != "" {
				return nil, why
			}
		}
	}
	return all, ""
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// collapse takes // for /.
func collapse(s string) (string, bool) {
	for strings.Contains(s, "//") {
		s = strings.ReplaceAll(s, "//", "/")
	}
	return s, true
}

// resolve follows . and .. steps; false: above the root.
func resolve(s string) (string, bool) {
	if !strings.Contains(s, "/.") {
		return s, true
	}
	var done []string
	segments := strings.Split(s[1:], "/")
	for i, seg := range segments {
		last := i == len(segments)-1
		switch seg {
		case ".":
		case "..":
			if len(done) == 0 {
				return "", false
			}
			done = done[:len(done)-1]
		default:
			done = append(done, seg)
			continue
		}
		if last {
			done = append(done, "") // "/a/.." is the folder "/"
		}
	}
	return "/" + strings.Join(done, "/"), true
}

// withoutParams drops ;parameters, as servlet containers do.
func withoutParams(s string) (string, bool) {
	if !strings.Contains(s, ";") {
		return s, true
	}
	segments := strings.Split(s, "/")
	for i, seg := range segments {
		segments[i], _, _ = strings.Cut(seg, ";")
	}
	return strings.Join(segments, "/"), true
}

// decodeAgain is what an origin does behind a server that has decoded already.
func decodeAgain(s string) (string, bool) { return decode(s, false), true }

// decode undoes %XX, but for slashes where they are kept. What is no escape stays.
func decode(s string, keepSlash bool) string {
	i := strings.IndexByte(s, '%')
	if i < 0 {
		return s
	}
	b := append(make([]byte, 0, len(s)), s[:i]...)
	for ; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if hi, lo := unhex(s[i+1]), unhex(s[i+2]); hi >= 0 && lo >= 0 {
				if c := byte(hi<<4 | lo); c != '/' || !keepSlash {
					b = append(b, c)
					i += 2
					continue
				}
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// slashes takes a backslash for a slash.
func slashes(s string) (string, bool) { return strings.ReplaceAll(s, `\`, "/"), true }

// cutQuery is what an origin does that decodes before it looks for the query.
func cutQuery(s string) (string, bool) {
	if i := strings.IndexAny(s, "?#"); i > 0 {
		return s[:i], true
	}
	return s, true
}

// trimmed drops dots and spaces at the end of segments, as Windows does.
func trimmed(s string) (string, bool) {
	if !strings.ContainsAny(s, ". ") {
		return s, true
	}
	segments := strings.Split(s, "/")
	for i, seg := range segments {
		if t := strings.TrimRight(seg, ". "); t != "" {
			segments[i] = t
		} else {
			segments[i] = strings.TrimRight(seg, " ") // "." and ".." are steps
		}
	}
	return strings.Join(segments, "/"), true
}
