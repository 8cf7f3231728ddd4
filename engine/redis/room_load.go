package redis

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var (
	luaNames  = regexp.MustCompile(`(?s)local NAMES = \{(.*?)\}\n`)
	luaName   = regexp.MustCompile(`'(\w+)'`)
	luaNumber = regexp.MustCompile(`(?m)^( *)local ([A-Z][A-Z_0-9]*(?:, [A-Z][A-Z_0-9]*)*) = ([0-9e]+(?:, [0-9e]+)*)( *--.*)?$`)
	luaToken  = regexp.MustCompile(`'(?:[^'\\\n]|\\.)*'|--[^\n]*|\bH\.\w+|\b[A-Z][A-Z_0-9]*\b`)
)

// roomSource makes one script of its parts. Constants become numbers, and fields of the head places in an array: a local that
// many functions capture costs each call time. Line numbers stay as they are.
func roomSource(parts ...string) string {
	source := strings.Join(parts, "")
	numbers := map[string]string{}
	names := luaNames.FindStringSubmatch(source)
	source = strings.Replace(source, names[0], strings.Repeat("\n", strings.Count(names[0], "\n")), 1)
	for i, m := range luaName.FindAllStringSubmatch(names[1], -1) {
		numbers["H."+m[1]] = fmt.Sprintf("H[%d]", i+1)
		numbers["HEAD"] = strconv.Itoa(i + 1)
	}
	source = luaNumber.ReplaceAllStringFunc(source, func(line string) string {
		m := luaNumber.FindStringSubmatch(line)
		values := strings.Split(m[3], ", ")
		for i, name := range strings.Split(m[2], ", ") {
			numbers[name] = values[i]
		}
		return ""
	})
	return luaToken.ReplaceAllStringFunc(source, func(token string) string {
		switch n, known := numbers[token]; {
		case strings.HasPrefix(token, "--"):
			return ""
		case known:
			return n
		case strings.HasPrefix(token, "H."):
			panic("redis: the head of a room has no " + token) // seen by whichever test comes first
		}
		return token
	})
}
