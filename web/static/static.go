// Package static holds what pages load: usher.js, the client of push (docs/push.md). The waiting page carries the same
// file in itself.
package static

import _ "embed"

// UsherJS is usher.js.
//
//go:embed usher.js
var UsherJS []byte
