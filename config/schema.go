package config

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (2020-12) of the file, for editors and checks.
func Schema() []byte { return slices.Clone(schema) }
