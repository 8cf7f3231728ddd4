package config

import (
	"fmt"
	"slices"
	"strings"
)

func (k *checker) gates() {
	ids := map[string]int{}
	for i := range k.c.Gates {
		g, at := &k.c.Gates[i], fmt.Sprintf("gates[%d]", i)
		if first, dup := ids[g.ID]; dup && g.ID != "" {
			k.add(at+".id", fmt.Sprintf("%q is already the id of gates[%d]", g.ID, first), "give every gate an id of its own")
		} else {
			ids[g.ID] = i
		}
		if len(g.Match) == 0 {
			k.add(at+".match", "is missing", "say where the gate stands: match: [{path: /checkout}]")
		}
		if name, ok := strings.CutPrefix(strings.ToLower(g.Key), "header:"); ok && strings.HasPrefix(strings.ReplaceAll(name, "_", "-"), "x-usher-") {
			k.add(at+".key", fmt.Sprintf("%q is written after the gates: here it is what the visitor made up", g.Key), "count by ip, or by a header or cookie of the site")
		}
		for j, m := range g.Match {
			path := fmt.Sprintf("%s.match[%d]", at, j)
			k.host(path+".host", m.Host)
			if what, mend := pathProblem(m.Path); what != "" {
				k.add(path+".path", what, mend)
			}
		}
	}
}

// gateWarnings tells of gates in front of hosts that nothing is proxied for. hostOrigin has the hosts that are.
func (k *checker) gateWarnings(hostOrigin map[string]string) {
	for i, g := range k.c.Gates {
		at := fmt.Sprintf("gates[%d]", i)
		if !slices.ContainsFunc(g.Match, func(m GateMatch) bool { return proxied(hostOrigin, m.Host) }) {
			k.add(at+".match", "no room of the file has an origin for it, and a gate stands in front of what is proxied", "give a room of that host an origin")
		}
		if g.OnEngineFailure == "open" {
			k.add(at+".on_engine_failure", "open: while state cannot be reached, nothing is limited", "use closed to answer 503")
		}
	}
}

func proxied(hostOrigin map[string]string, host string) bool {
	if _, every := hostOrigin[""]; every || host == "" {
		return len(hostOrigin) > 0
	}
	for h := range hostOrigin {
		if strings.EqualFold(h, host) {
			return true
		}
	}
	return false
}
