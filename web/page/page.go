package page

import (
	"bytes"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strconv"
)

//go:embed assets
var assets embed.FS

// maxRefresh keeps a mistaken Refresh from stranding visitors without scripts.
const maxRefresh = 300

// Pages renders the pages of one room. Make it with New; it is immutable and safe for concurrent use.
type Pages struct {
	tmpl   *template.Template
	style  template.CSS
	script template.JS
	logo   template.URL // data: URL of the operator's logo; empty: our mark is drawn
	langs  []string     // first the built-in ones, in a fixed order, then the operator's
	texts  map[string]texts
	raw    map[string]template.JS // each language's texts as JSON, marshalled once
	packed map[string][]packed    // by language: style, texts and script, compressed once
}

// New reads an operator's folder (docs/page.md) over the built-in page; dir "" means the built-in page alone. Every
// error names the file, the line where there is one, and the mend. The whole page is rendered once in every state and
// language, so that a template that fails, fails here and not before a crowd. All mistakes are found; [Faults] takes
// the error apart.
func New(dir string) (*Pages, error) {
	p, err := builtin()
	if err != nil {
		return nil, err
	}
	var mistakes error
	if dir != "" {
		mistakes = p.overlay(dir)
	}
	// What could be read is tried all the same: a template may fail too.
	if err := errors.Join(mistakes, p.seal()); err != nil {
		return nil, err
	}
	return p, nil
}

// Languages lists the languages that the page can speak.
func (p *Pages) Languages() []string { return append([]string(nil), p.langs...) }

// Write answers a request with the page: headers, a fresh nonce, status and body (no body for HEAD), gzipped for who
// takes that. Use 202 for a
// visitor who waits, and the API's own status for a refusal. It returns an error only when rendering failed, in which
// case nothing has been written.
func (p *Pages) Write(w http.ResponseWriter, r *http.Request, status int, s State) error {
	s.Nonce = nonce()
	if s.Lang == "" {
		s.Lang = r.Header.Get("Accept-Language")
	}
	var buf bytes.Buffer
	buf.Grow(48 << 10)
	if err := p.Render(&buf, s); err != nil {
		return err
	}
	h := w.Header()
	for k, v := range Headers(s.Nonce) {
		h[k] = v
	}
	lang := Negotiate(s.Lang, p.langs)
	body := buf.Bytes()
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		body = zip(make([]byte, 0, len(body)/2), body, p.packed[lang]...)
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Language", lang)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if s.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(s.RetryAfter))
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a visitor who went away is no error of ours
	}
	return nil
}

// Headers are what the page must be served with; nonce is State.Nonce.
func Headers(nonce string) http.Header {
	return http.Header{
		"Content-Type":  {"text/html; charset=utf-8"},
		"Cache-Control": {"no-store"},
		"X-Robots-Tag":  {"noindex, nofollow"},
		"Vary":          {"Accept, Accept-Encoding, Accept-Language, Cookie"},
		"Content-Security-Policy": {"default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" + nonce +
			"'; img-src 'self' data:; font-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"},
		"Referrer-Policy":        {"same-origin"},
		"X-Content-Type-Options": {"nosniff"},
	}
}

// Render writes the HTML alone. Serve it with Headers(s.Nonce), or use Write, which does.
func (p *Pages) Render(w io.Writer, s State) error {
	m := p.model(s)
	if err := p.tmpl.ExecuteTemplate(w, "page.html", m); err != nil {
		return fmt.Errorf("page: render %s: %w", m.State, err)
	}
	return nil
}

func nonce() string { return rand.Text() }
