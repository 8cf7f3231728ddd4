package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/config"
)

func TestRoutes(t *testing.T) {
	c, err := config.Parse([]byte(`
routes:
  - id: browsers
    match: [{host: app.test, path: /accounts}]
    key: {path: "/accounts/{key}", json: user.account}
    instances: [{id: b-1, addr: "10.0.0.7:3000", max_sessions: 3}]
    health: {fail_after: 8s}
    secret: sixteen-characters-at-least
`))
	if err != nil {
		t.Fatal(err)
	}
	r := c.Routes[0]
	if r.Health.FailAfter != 8*time.Second || r.Health.Path != "/health/live" || r.MaxReplay != 64<<10 || r.Instances[0].MaxSessions != 3 {
		t.Errorf("%+v", r)
	}
	for text, says := range map[string]string{
		"routes: [{match: [{path: /}], key: {query: a}}]":                                                                 "routes[0].id: is missing",
		"routes: [{id: a, key: {query: a}}]":                                                                              "routes[0].match: is missing",
		"routes: [{id: a, match: [{path: /}]}]":                                                                           "routes[0].key: is missing",
		"routes: [{id: a, match: [{path: x}], key: {query: a}}]":                                                          "routes[0].match[0].path",
		"routes: [{id: a, match: [{path: /}], key: {path: /a}}]":                                                          "routes[0].key.path",
		"routes: [{id: a, match: [{path: /}], key: {query: a}, secret: short}]":                                           "routes[0].secret",
		"routes: [{id: a, match: [{path: /}], key: {query: a}, health: {every: 1ms}}]":                                    "routes[0].health.every",
		"routes: [{id: a, match: [{path: /}], key: {query: a}, instances: [{id: x, addr: 'ftp://y'}]}]":                   "routes[0].instances[0].addr",
		"routes: [{id: a, match: [{path: /}], key: {query: a}}, {id: a, match: [{path: /b}], key: {query: a}}]":           "routes[1].id",
		"routes: [{id: a, match: [{path: /}], key: {query: a}, instance: []}]":                                            "instances",
		"routes: [{id: a, match: [{host: 'http://h', path: /}], key: {query: a}}]":                                        `routes[0].match[0].host: "http://h" holds a scheme`,
		"routes: [{id: a, match: [{path: /x}], key: {query: a}}, {id: b, match: [{path: /x/}], key: {query: a}}]":         `routes[1].match[0]: /x/ on every host is already matched by route "a"`,
		"routes: [{id: a, match: [{path: /}], key: {query: a}, health: {every: 9s}}]":                                     "routes[0].health.fail_after: 5s is less than every (9s)",
		"routes: [{id: a, match: [{path: /}], key: {query: a}, instances: [{id: x, addr: 'a:1'}, {id: x, addr: 'b:1'}]}]": `routes[0].instances[1].id: "x" is given twice`,
	} {
		if _, err := config.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s\ngot %v, want %s", text, err, says)
		}
	}
}
