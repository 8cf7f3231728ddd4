package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// RoomPatch turns assignments such as capacity.active=800 or queue.order=random
// into the nested value that changes a room through the admin API. A key may be
// written without its section where it is the only one of its name (active=800).
// Lists are separated by commas. The error is [Problems]; pairs of values that
// must agree are for the server to check, which knows the others.
func RoomPatch(assignments []string) (map[string]any, error) {
	leaves := roomLeaves("", reflect.TypeFor[Room](), nil)
	out := map[string]any{}
	k := &checker{}
	for _, a := range assignments {
		key, text, ok := strings.Cut(a, "=")
		if !ok {
			k.add(key, "has no value", fmt.Sprintf("write %s=VALUE", key))
			continue
		}
		leaf, what, mend := findLeaf(leaves, key)
		if what != "" {
			k.add(key, what, mend)
			continue
		}
		if val, ok := k.assignment(leaf, text); ok {
			put(out, strings.Split(leaf.path, "."), val)
		}
	}
	if len(assignments) == 0 {
		k.add("", "nothing to set", "write KEY=VALUE, as active=800")
	}
	return out, k.probs.orNil()
}

type leaf struct {
	path  string
	field reflect.StructField
}

func roomLeaves(path string, t reflect.Type, out []leaf) []leaf {
	for _, f := range fieldsOf(t) {
		at := joinPath(path, keyOf(f))
		if f.Type == reflect.TypeFor[Collapse]() {
			continue // the file's alone
		}
		if f.Type.Kind() == reflect.Struct && !scalarType(f.Type) {
			out = roomLeaves(at, f.Type, out)
		} else {
			out = append(out, leaf{at, f})
		}
	}
	return out
}

func findLeaf(leaves []leaf, key string) (found leaf, what, mend string) {
	if key == "collapse" || strings.HasPrefix(key, "collapse.") {
		return leaf{}, "is not part of the room's settings", "change it in the file of each node, and send SIGHUP"
	}
	var hits []leaf
	var names []string
	for _, l := range leaves {
		if l.path == key {
			hits = []leaf{l}
			break
		}
		if lastKey(l.path) == key {
			hits = append(hits, l)
		}
		if strings.HasPrefix(l.path, key+".") {
			return leaf{}, "is a section", "name a key in it: " + l.path
		}
		names = append(names, l.path, lastKey(l.path))
	}
	switch {
	case len(hits) > 1:
		return leaf{}, "is the name of several keys", "write " + hits[0].path + " or " + hits[1].path
	case len(hits) == 0:
		if near := nearest(key, names); near != "" {
			return leaf{}, "unknown key", fmt.Sprintf("did you mean %q?", near)
		}
		return leaf{}, "unknown key", "there are " + strings.Join(shortNames(leaves), ", ")
	case hits[0].path == "id":
		return leaf{}, "cannot be changed", "make another room"
	case hits[0].path == "match":
		return leaf{}, "cannot be set on the command line", "change it in the file, or by PATCH on the admin API"
	}
	return hits[0], "", ""
}

// shortNames are what can be set, without the section where that is enough.
func shortNames(leaves []leaf) []string {
	times := map[string]int{}
	for _, l := range leaves {
		times[lastKey(l.path)]++
	}
	var out []string
	for _, l := range leaves {
		switch short := lastKey(l.path); {
		case l.path == "id" || l.path == "match":
		case times[short] > 1:
			out = append(out, l.path)
		default:
			out = append(out, short)
		}
	}
	return out
}

// assignment parses and checks one value and gives it as JSON has it.
func (k *checker) assignment(l leaf, text string) (any, bool) {
	if l.field.Type.Kind() == reflect.Slice {
		list := []string{}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		before := len(k.probs)
		k.cors(l.path, list)
		return list, len(k.probs) == before
	}
	v := reflect.New(l.field.Type).Elem()
	if v.Kind() == reflect.Bool && text != "true" && text != "false" {
		k.add(l.path, fmt.Sprintf("%q is not true or false", text), "write true or false")
		return nil, false
	}
	if err := setScalar(v, text); err != nil {
		if bad, ok := err.(*badValue); ok {
			k.add(l.path, bad.what, bad.mend)
		} else {
			k.add(l.path, err.Error(), "")
		}
		return nil, false
	}
	before := len(k.probs)
	k.scalar(l.path, v, l.field.Tag)
	if len(k.probs) > before {
		return nil, false
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return formatDuration(x), true
	case Size:
		return x.String(), true
	case time.Time:
		if x.IsZero() {
			return "", true
		}
		return x.Format(time.RFC3339), true
	default:
		return x, true
	}
}

func put(m map[string]any, path []string, val any) {
	for _, step := range path[:len(path)-1] {
		inner, ok := m[step].(map[string]any)
		if !ok {
			inner = map[string]any{}
			m[step] = inner
		}
		m = inner
	}
	m[path[len(path)-1]] = val
}
