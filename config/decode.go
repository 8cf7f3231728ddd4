package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxDepth and maxNodes bound what a file can make us do (aliases can make a
// small file huge).
const (
	maxDepth = 32
	maxNodes = 200_000
)

// decoder fills a Config from nodes. It goes on after an error so that all
// are found in one run.
type decoder struct {
	src   source
	probs Problems
	// unread are the paths whose value could not be read: what a check says about
	// them, or about what lies above, only repeats the problem.
	unread []string
	nodes  int
}

func (d *decoder) fail(n *yaml.Node, path, what, mend string) {
	d.unread = append(d.unread, path)
	d.probs = append(d.probs, Problem{File: d.src.file, Line: n.Line, Col: n.Column, Path: path, What: what, Mend: mend})
}

func (d *decoder) value(path string, n *yaml.Node, v reflect.Value, depth int) {
	d.nodes++
	if depth > maxDepth || d.nodes > maxNodes {
		if d.nodes <= maxNodes+1 {
			d.fail(n, path, "the file is nested too deep or too large", "a configuration needs neither: check its anchors")
		}
		d.nodes = maxNodes + 1
		return
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.src.at[path] = position{n.Line, n.Column}
	d.switchOn(path, n, v)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // "rooms:" with nothing after it keeps the default
	}
	if scalarType(v.Type()) {
		d.scalar(path, n, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(path, n, v, depth)
	case reflect.Slice:
		d.sequence(path, n, v, depth)
	default:
		panic("config: no decoder for " + v.Type().String())
	}
}

func (d *decoder) mapping(path string, n *yaml.Node, v reflect.Value, depth int) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "must be a mapping of "+strings.Join(keysOf(v.Type()), ", ")+", not "+describe(n), exampleOf(path, v.Type()))
		return
	}
	seen := map[string]*yaml.Node{}
	var meant []string // what misspelt keys most likely are

	for i := 0; i+1 < len(n.Content); i += 2 { // first, so that the keys beside it win
		if n.Content[i].Tag == "!!merge" {
			d.merge(path, n.Content[i+1], v, depth)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, val := n.Content[i], n.Content[i+1]
		if k.Tag == "!!merge" {
			continue
		}
		at := joinPath(path, k.Value)
		if first, dup := seen[k.Value]; dup {
			d.fail(k, at, fmt.Sprintf("is given twice, first in line %d", first.Line), "keep one")
			continue
		}
		seen[k.Value] = k
		field, ok := fieldByKey(v.Type(), k.Value)
		if !ok {
			d.fail(k, at, "unknown key", unknownMend(path, v.Type(), k.Value))
			if near := nearest(k.Value, keysOf(v.Type())); near != "" {
				meant = append(meant, near)
			}
			continue
		}
		d.value(at, val, v.FieldByIndex(field.Index), depth+1)
	}
	for _, key := range meant {
		if seen[key] == nil { // it is given under its wrong name alone, and a check would call it missing
			d.unread = append(d.unread, joinPath(path, key))
		}
	}
}

// merge applies "<<: *base".
func (d *decoder) merge(path string, n *yaml.Node, v reflect.Value, depth int) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "<< must name one mapping", "write <<: *name")
		return
	}
	d.mapping(path, n, v, depth+1)
}

func (d *decoder) sequence(path string, n *yaml.Node, v reflect.Value, depth int) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "must be a list, not "+describe(n), "begin each item with a dash, or write ["+strings.TrimSpace(n.Value)+"]")
		return
	}
	out := reflect.MakeSlice(v.Type(), 0, len(n.Content))
	for i, item := range n.Content {
		el := reflect.New(v.Type().Elem()).Elem()
		setDefaults(el)
		d.value(fmt.Sprintf("%s[%d]", path, i), item, el, depth+1)
		out = reflect.Append(out, el)
	}
	v.Set(out)
}

func (d *decoder) scalar(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, path, "must be "+typeName(v.Type())+", not "+describe(n), "")
		return
	}
	// A value that YAML itself reads as another type ("token: 12345") is taken
	// as it is written; only numbers and booleans insist.
	switch {
	case v.Kind() == reflect.Bool && n.Tag != "!!bool":
		d.fail(n, path, fmt.Sprintf("%q is not true or false", n.Value), "write true or false, without quotes")
		return
	case v.Kind() == reflect.Int && n.Tag == "!!str" && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		if _, err := strconv.Atoi(n.Value); err == nil {
			d.fail(n, path, fmt.Sprintf("must be a whole number, not the text %q", n.Value), "write it without quotes")
			return
		}
	}
	if err := setScalar(v, n.Value); err != nil {
		what, mend := err.Error(), ""
		if bad, ok := err.(*badValue); ok {
			what, mend = bad.what, bad.mend
		}
		d.fail(n, path, what, mend)
	}
}

// scalarType reports whether t is written as one YAML scalar.
func scalarType(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[Secret](), reflect.TypeFor[time.Time](), reflect.TypeFor[netip.Prefix]():
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return true
	}
	return false
}

// setScalar parses text into v; it serves the file and the default tags alike.
func setScalar(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case *Secret:
		*p = NewSecret(text)
	case *time.Duration:
		parsed, err := parseDuration(text)
		if err != nil {
			return err
		}
		*p = parsed
	case *Size:
		parsed, err := ParseSize(text)
		if err != nil {
			return &badValue{what: err.Error(), mend: "write 512MiB, 1GiB or a number of bytes"}
		}
		*p = parsed
	case *time.Time:
		if text == "" {
			*p = time.Time{}
			return nil
		}
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return &badValue{what: fmt.Sprintf("%q is not a time", text), mend: "write RFC 3339 with an offset, as 2030-06-01T10:00:00+09:00 or 2030-06-01T01:00:00Z"}
		}
		*p = parsed
	case *netip.Prefix:
		parsed, err := parsePrefix(text)
		if err != nil {
			return err
		}
		*p = parsed
	case *string:
		*p = text
	case *bool:
		*p = strings.EqualFold(text, "true")
	case *int:
		n, err := strconv.Atoi(strings.ReplaceAll(text, "_", ""))
		if err != nil {
			return &badValue{what: fmt.Sprintf("%q is not a whole number", text), mend: "write digits alone, as 600"}
		}
		*p = n
	default:
		panic("config: no scalar of type " + v.Type().String())
	}
	return nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		if p != p.Masked() {
			return netip.Prefix{}, &badValue{what: fmt.Sprintf("%s has bits set beyond its mask", text), mend: "write " + p.Masked().String()}
		}
		return p, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.Prefix{}, &badValue{what: fmt.Sprintf("%q is an address, not a network", text), mend: fmt.Sprintf("write %s/%d", a, a.BitLen())}
	}
	return netip.Prefix{}, &badValue{what: fmt.Sprintf("%q is not a network", text), mend: "write CIDR, as 10.0.0.0/8 or fd00::/8"}
}
