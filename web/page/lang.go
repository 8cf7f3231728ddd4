package page

import (
	"strconv"
	"strings"
)

// fallback is the language for those who asked for none of ours.
const fallback = "en"

// maxRanges bounds the work that a hostile Accept-Language can cause.
const maxRanges = 32

// Negotiate picks the language of available that an Accept-Language header wants most, by q-value and then by the
// header's own order; "ko-KR" is served by "ko" and "ko" by "ko-KR". A language with q=0 is never chosen by "*". When
// nothing fits the answer is "en", or the first available one where there is no English.
func Negotiate(header string, available []string) string {
	ranges := parseAccept(header)
	best, bestQ := "", 0.0
	for _, r := range ranges {
		if r.q <= bestQ {
			continue
		}
		if lang := match(r.tag, available, ranges); lang != "" {
			best, bestQ = lang, r.q
		}
	}
	if best != "" {
		return best
	}
	for _, a := range available {
		if a == fallback {
			return a
		}
	}
	if len(available) == 0 {
		return fallback
	}
	return available[0]
}

type langRange struct {
	tag string
	q   float64
}

func parseAccept(header string) []langRange {
	if len(header) > 1024 {
		header = header[:1024]
	}
	var out []langRange
	for i, part := range strings.Split(header, ",") {
		if i == maxRanges {
			break
		}
		tag, params, _ := strings.Cut(part, ";")
		tag = strings.ToLower(strings.TrimSpace(tag))
		if tag == "" {
			continue
		}
		q := 1.0
		for _, p := range strings.Split(params, ";") {
			k, v, ok := strings.Cut(strings.TrimSpace(p), "=")
			if !ok || !strings.EqualFold(strings.TrimSpace(k), "q") {
				continue
			}
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil || !(f >= 0 && f <= 1) {
				f = 0 // a range that we cannot read asks for nothing
			}
			q = f
		}
		out = append(out, langRange{tag, q})
	}
	return out
}

func match(tag string, available []string, all []langRange) string {
	if tag == "*" {
		for _, a := range append([]string{fallback}, available...) {
			if has(available, a) && !refused(a, all) {
				return a
			}
		}
		return ""
	}
	for _, a := range available { // exact first
		if strings.EqualFold(a, tag) {
			return a
		}
	}
	for _, a := range available {
		if primary(strings.ToLower(a)) == primary(tag) {
			return a
		}
	}
	return ""
}

func refused(lang string, all []langRange) bool {
	for _, r := range all {
		if r.q == 0 && primary(r.tag) == primary(strings.ToLower(lang)) {
			return true
		}
	}
	return false
}

func has(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func primary(tag string) string {
	p, _, _ := strings.Cut(tag, "-")
	return p
}
