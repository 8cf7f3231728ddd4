package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strings"

	"github.com/ushergo/usher/room"
)

// difference is a setting of a room that runs with another value than the
// configuration gives.
type difference struct{ key, wanted, runs string }

// differences compares setting by setting, in the order of their names.
func differences(wanted, runs room.Config) ([]difference, error) {
	a, err := settings(wanted)
	if err != nil {
		return nil, err
	}
	b, err := settings(runs)
	if err != nil {
		return nil, err
	}
	var out []difference
	for key := range a {
		if a[key] != b[key] {
			out = append(out, difference{key, a[key], b[key]})
		}
	}
	for key := range b {
		if _, both := a[key]; !both && b[key] != "" {
			out = append(out, difference{key, "", b[key]})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].key < out[j].key })
	return out, nil
}

// settings are c's, by the names that "usher rooms set" takes.
func settings(c room.Config) (map[string]string, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}
	out := map[string]string{}
	flatten("", doc, out)
	return out, nil
}

func flatten(path string, v any, out map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			if path != "" {
				key = path + "." + key
			}
			flatten(key, inner, out)
		}
	case []any:
		var items []string
		for _, item := range v {
			text, ok := item.(string)
			if !ok {
				b, _ := json.Marshal(item) // of what was JSON
				text = string(b)
			}
			items = append(items, text)
		}
		out[path] = strings.Join(items, ",")
	case nil:
		out[path] = ""
	default:
		out[path] = fmt.Sprint(v)
	}
}

// warnStands says so when r runs with other settings than the file or the flags
// give: the admin API's word stands until they say something new, and whoever
// just gave a flag expects it to hold.
func (s *Server) warnStands(wanted room.Config, r *room.Room) {
	all, err := differences(wanted, r.Summary().Config)
	if err != nil || len(all) == 0 {
		return
	}
	var fields, set []string
	mend := ""
	for _, d := range all {
		fields = append(fields, fmt.Sprintf("%s: %s runs, configured %s", d.key, orNone(d.runs), orNone(d.wanted)))
		if d.key == "match" {
			mend = "; match by PATCH /admin/v1/rooms/" + wanted.ID
			continue
		}
		set = append(set, d.key+"="+quoted(d.wanted))
	}
	if len(set) > 0 {
		mend = "usher rooms set " + wanted.ID + " " + strings.Join(set, " ") + mend
	}
	s.log.Warn("a room keeps what was changed by the admin API (usher rooms set): file and flags count when they change",
		"room", wanted.ID, "differs", strings.Join(fields, "; "), "to go back", strings.TrimPrefix(mend, "; "))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

var bare = regexp.MustCompile(`^[A-Za-z0-9:/._,+-]*$`)

// quoted makes s one word for a shell.
func quoted(s string) string {
	if bare.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
