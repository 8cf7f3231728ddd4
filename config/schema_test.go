package config_test

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/ushergo/usher/config"
)

// The schema and the table of keys say what the structs say.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	out, err := exec.Command("go", "run", "./internal/genschema", "-check").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// An editor with the schema and usher agree about a file, as far as a schema
// can see.
func TestSchemaAgreesWithParser(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for text, good := range map[string]bool{
		"{}":                      true,
		"rooms:\n":                true,
		"gates: []\nkeeper: {}\n": true,
		"public: {listen: ':80', tls: {cert: '', key: ''}}\nnode: {drain: 1m30s}\n":                                       true,
		"rooms:\n- {id: a, capacity: {active: 5}}\n":                                                                      true,
		"rooms:\n- {id: a, capacity: {active: 5}, log: {max_bytes: 512MiB}, session: {claim: 0}}\n":                       true,
		"rooms:\n- {id: a, capacity: {active: 5}, schedule: {opens_at: '2030-06-01T10:00:00+09:00', closes_at: ''}}\n":    true,
		"rooms:\n- {id: a, capacity: {active: 5}, queue: {order: reject}, match: [{host: h.test, path: /x}]}\n":           true,
		"trusted_proxies: [10.0.0.0/8, 'fd00::/8']\negress: {allow: []}\nservice: {tokens: []}\n":                         true,
		"gates:\n- {id: a, permits: 2, match: [{host: h.test, path: /x, methods: [POST]}], key: 'header:X-A', wait: 0}\n": true,
		"service: {tokens: [0123456789abcdef]}\n":                                                                         true,
		"gates:\n- {id: a, match: [{path: /x}]}\n":                                                                        false,
		"gates:\n- {id: a, permits: 2, match: [{path: /x}], key: 'header:'}\n":                                            false,
		"gates:\n- {id: a, permits: 2, match: [{path: /x, methods: [post]}]}\n":                                           false,
		"unknown: 1\n":                                    false,
		"gates: [{}]\n":                                   false,
		"rooms:\n- {capacity: {active: 5}}\n":             false,
		"rooms:\n- {id: A, capacity: {active: 5}}\n":      false,
		"rooms:\n- {id: a, capacity: {active: '5'}}\n":    false,
		"rooms:\n- {id: a, capacity: {active: -5}}\n":     false,
		"rooms:\n- {id: a, queue: {order: lifo}}\n":       false,
		"rooms:\n- {id: a, session: {idle: 300}}\n":       false,
		"rooms:\n- {id: a, session: {idle: 5 minutes}}\n": false,
		"rooms:\n- {id: a, log: {max_bytes: lots}}\n":     false,
		"rooms:\n- {id: a, schedule: {opens_at: soon}}\n": false,
		"trusted_proxies: [10.0.0.1]\n":                   false,
		"engine: {kind: disk}\n":                          false,
	} {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		_, parseErr := config.Parse([]byte(text))
		schemaErr := schema.Validate(value)
		if (parseErr == nil) != good || (schemaErr == nil) != good {
			t.Errorf("%s\nwant good %v; the parser: %v; the schema: %v", text, good, parseErr, schemaErr)
		}
	}
}
