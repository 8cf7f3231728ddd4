package web

import (
	_ "embed"

	"github.com/ushergo/usher/web/static"
)

//go:embed openapi/openapi.json
var openapiJSON []byte

// usherJS is the client for pages: they can keep it with their own files too.
func (c *call) usherJS() { c.shared("text/javascript; charset=utf-8", static.UsherJS) }

// openapi is the description of everything here, for programs.
func (c *call) openapi() { c.shared("application/json", openapiJSON) }
