package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// switchOn notes that a collapse: or keeper: section is there.
func (d *decoder) switchOn(path string, n *yaml.Node, v reflect.Value) {
	var on *bool
	switch c := v.Addr().Interface().(type) {
	case *Collapse:
		on = &c.On
	case *Keeper:
		on = &c.On
	default:
		return
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		d.fail(n, path, "is empty", "write "+lastKey(path)+": {} for the defaults, or remove it")
		return
	}
	*on = true
}

func (k *checker) collapse(at string, r *Room) {
	c := &r.Collapse
	if !c.On {
		return
	}
	for i, name := range c.Query {
		if name == "" {
			k.add(fmt.Sprintf("%s.query[%d]", at, i), "is empty", "name a parameter; for none at all write query: []")
		}
	}
	for list, names := range map[string][]string{"headers": c.Headers, "drop_headers": c.DropHeaders, "ignore_cookies": c.IgnoreCookies} {
		for i, name := range names {
			path := fmt.Sprintf("%s.%s[%d]", at, list, i)
			switch {
			case name == "":
				k.add(path, "is empty", "name one, or write "+list+": []")
			case list == "headers" && credential(name):
				k.add(path, name+" would make every visitor's request her own", "use principal_header or ignore_cookies")
			}
		}
	}
	if credential(c.PrincipalHeader) {
		k.add(at+".principal_header", c.PrincipalHeader+" is what visitors write", "name a header that is set in front of usher, or X-Usher-Ticket-Id")
	}
	if c.MaxBody > c.MaxMemory {
		k.add(at+".max_body", fmt.Sprintf("%s is more than max_memory (%s)", c.MaxBody, c.MaxMemory), "make max_memory the larger one")
	}
	if c.Burst > 0 && c.PerSecond == 0 {
		k.add(at+".burst", "is given without per_second", "add per_second, or remove it")
	}
}

func credential(header string) bool {
	return strings.EqualFold(header, "Cookie") || strings.EqualFold(header, "Authorization") || strings.EqualFold(header, "Proxy-Authorization")
}

// collapseWarnings tells of sections of rooms that nothing is proxied for. hostOrigin has the hosts that are.
func (k *checker) collapseWarnings(hostOrigin map[string]string) {
	for i, r := range k.c.Rooms {
		if r.Collapse.On && !slices.ContainsFunc(r.Match, func(m Match) bool { return proxied(hostOrigin, m.Host) }) {
			k.add(fmt.Sprintf("rooms[%d].collapse", i), "no room of the file has an origin for it, and only what is proxied is collapsed", "give the room an origin")
		}
	}
}
