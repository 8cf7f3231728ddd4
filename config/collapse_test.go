package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/config"
)

func collapseFile(section string) []byte {
	return []byte("rooms:\n- id: a\n  origin: http://127.0.0.1:9000\n  match: [{path: /}]\n  capacity: {active: 5}\n" + section)
}

func TestCollapse(t *testing.T) {
	for section, on := range map[string]bool{"": false, "  collapse: {}\n": true, "  collapse: {query: []}\n": true} {
		c, err := config.Parse(collapseFile(section))
		if err != nil {
			t.Fatal(err)
		}
		got := c.Rooms[0].Collapse
		if got.On != on || got.Timeout != 30*time.Second || got.Headers != nil || got.DropHeaders != nil || (got.Query != nil) != strings.Contains(section, "query") {
			t.Errorf("%q: %+v", section, got)
		}
	}
}

func TestCollapseProblems(t *testing.T) {
	for section, want := range map[string]string{
		"  collapse:\n":                                            `6:12: rooms[0].collapse: is empty; write collapse: {} for the defaults, or remove it`,
		"  collapse: true\n":                                       `6:13: rooms[0].collapse: must be a mapping of query, headers, `,
		"  collapse: {headers: [Cookie]}\n":                        `6:24: rooms[0].collapse.headers[0]: Cookie would make every visitor's request her own; use principal_header or ignore_cookies`,
		"  collapse: {headers: [\"a b\"]}\n":                       `6:24: rooms[0].collapse.headers[0]: "a b" is not allowed; use the name of a header`,
		"  collapse: {drop_headers: [\"\"]}\n":                     `rooms[0].collapse.drop_headers[0]: is empty; name one, or write drop_headers: []`,
		"  collapse: {query: [\"\"]}\n":                            `rooms[0].collapse.query[0]: is empty; name a parameter; for none at all write query: []`,
		"  collapse: {ignore_cookies: [\"*\"]}\n":                  `rooms[0].collapse.ignore_cookies[0]: "*" is not allowed; use the name of a cookie, or the beginning of one and *`,
		"  collapse: {principal_header: authorization}\n":          `rooms[0].collapse.principal_header: authorization is what visitors write; name a header`,
		"  collapse: {on_leave: stop}\n":                           `rooms[0].collapse.on_leave: "stop" is not one of the choices; choose finish or cancel`,
		"  collapse: {timeout: 5}\n":                               `rooms[0].collapse.timeout: "5" is not a duration`,
		"  collapse: {timout: 5s}\n":                               `rooms[0].collapse.timout: unknown key; did you mean "timeout"?`,
		"  collapse: {max_body: 2MiB, max_memory: 1MiB}\n":         `rooms[0].collapse.max_body: 2MiB is more than max_memory (1MiB); make max_memory the larger one`,
		"  collapse: {burst: 5}\n":                                 `rooms[0].collapse.burst: is given without per_second; add per_second, or remove it`,
		"  collapse: {concurrency: -1}\n":                          `rooms[0].collapse.concurrency: -1 is out of range; choose from 0 to 1000000`,
		"  collapse: {backoff: sometimes, slow_client: 1us}\n":     `rooms[0].collapse.backoff: "sometimes" is not one of the choices; choose on or off`,
		"  collapse: {principal_header: \"X-Usher-Ticket-Id:\"}\n": `rooms[0].collapse.principal_header: "X-Usher-Ticket-Id:" is not allowed; use the name of a header`,
	} {
		_, err := config.Read("usher.yaml", strings.NewReader(string(collapseFile(section))))
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q:\n got %v\nwant %s", section, err, want)
		}
	}
}

// Only what is proxied is collapsed, and the admin API does not know of it.
func TestCollapseElsewhere(t *testing.T) {
	c, err := config.Parse([]byte("rooms:\n- {id: a, match: [{host: a.test}], capacity: {active: 5}, collapse: {}}\n- {id: b, match: [{host: b.test}], origin: \"http://127.0.0.1:9000\", capacity: {active: 5}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if w := c.Warnings().Error(); !strings.Contains(w, "rooms[0].collapse: no room of the file has an origin for it") {
		t.Error(w)
	}
	for _, key := range []string{"collapse", "collapse.timeout"} {
		if _, err := config.RoomPatch([]string{key + "=5s"}); !strings.Contains(fmt.Sprint(err), "change it in the file") {
			t.Error(err)
		}
	}
}
