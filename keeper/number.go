package keeper

import (
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"strings"
)

var errNoNumber = errors.New("the message has no such number")

// numberOf reads the number of a message at path, whose parts are keys of nested objects. A string of digits counts.
func numberOf(message []byte, path []string) (int64, error) {
	raw := json.RawMessage(message)
	for _, key := range path {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil || object[key] == nil {
			return 0, errNoNumber
		}
		raw = object[key]
	}
	text := string(raw)
	if len(text) > 1 && text[0] == '"' {
		text = text[1 : len(text)-1]
	}
	if text == "" {
		return 0, errNoNumber
	}
	return parseSeq(text)
}

// parseSeq reads a cursor: digits alone, up to 2^63 - 1. Empty is 0.
func parseSeq(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || text[0] == '+' || text[0] == '-' {
		return 0, errNoNumber
	}
	return n, nil
}

func formatSeq(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// place fills in a Resume's texts.
type place struct {
	id     string
	cursor int64
	fence  uint64
}

func (p place) fill(text string, escape func(string) string) string {
	if !strings.Contains(text, "{") {
		return text
	}
	return strings.NewReplacer(
		"{cursor}", strconv.FormatInt(p.cursor, 10), "{next}", strconv.FormatInt(p.cursor+1, 10),
		"{fence}", strconv.FormatUint(p.fence, 10), "{id}", escape(p.id),
	).Replace(text)
}

func plain(s string) string { return s }

// url is the address that resumes at p.
func (p place) url(s *Spec) string {
	if s.Resume.Query == "" {
		return s.URL
	}
	sep := "?"
	if strings.Contains(s.URL, "?") {
		sep = "&"
	}
	return s.URL + sep + p.fill(s.Resume.Query, url.QueryEscape)
}

// bare is a URL without its query, for logs.
func bare(text string) string {
	text, _, _ = strings.Cut(text, "?")
	return text
}
