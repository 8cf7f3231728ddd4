package svc

import (
	"crypto/rand"
	_ "embed"
	"io"
	"net/http"
	"strings"
)

//go:embed keeper.html
var keeperHTML string

// keeperPage is the live view: one file. It holds nothing secret; what it shows it asks for with a service token.
func keeperPage(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		fail(w, &problem{status: 405, code: "method_not_allowed", detail: "use GET, HEAD"})
		return
	}
	nonce := rand.Text()
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Robots-Tag", "noindex, nofollow")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, strings.ReplaceAll(keeperHTML, "{{nonce}}", nonce))
}
