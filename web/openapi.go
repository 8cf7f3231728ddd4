package web

import _ "embed"

//go:embed openapi/openapi.json
var openapiJSON []byte

// openapi is the description of everything here, for programs.
func (c *call) openapi() { c.shared("application/json", openapiJSON) }
