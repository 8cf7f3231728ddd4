package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

//go:embed preview
var previewFiles embed.FS

var previewIndex = template.Must(template.ParseFS(previewFiles, "preview/index.html"))

// Preview shows every state of the page in every language, for `usher page preview`. dir is the operator's folder, or
// "". The folder is read anew for each request and open pages reload when a file in it changes; a mistake in it is
// shown as its error message until it is mended. It is a tool for a loopback listener, not for visitors.
//
//	GET /               all states side by side; ?lang=ko&theme=dark&width=360
//	GET /{sample}       one of them, as a visitor sees it; ?lang=&theme=
//	GET /-/version      changes when a file in the folder does
func Preview(dir string) http.Handler {
	p := preview{dir: dir}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.index)
	mux.HandleFunc("GET /-/version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		fmt.Fprint(w, p.version())
	})
	mux.HandleFunc("GET /{sample}", p.one)
	return mux
}

type preview struct{ dir string }

func (p preview) index(w http.ResponseWriter, r *http.Request) {
	pages, err := New(p.dir)
	if err != nil {
		p.broken(w, err)
		return
	}
	var names []string
	for _, s := range Samples(time.Now()) {
		names = append(names, s.Name)
	}
	q := r.URL.Query()
	lang, theme, width := q.Get("lang"), q.Get("theme"), q.Get("width")
	if lang == "" {
		lang = Negotiate(r.Header.Get("Accept-Language"), pages.langs)
	}
	if width != "1440" {
		width = "360"
	}
	n := nonce()
	p.serve(w, n, "index.html", map[string]any{
		"Nonce": n, "Version": p.version(), "Dir": p.dir, "Names": names,
		"Langs": pages.langs, "Lang": lang, "Themes": []string{"", "light", "dark"}, "Theme": theme,
		"Widths": []string{"360", "1440"}, "Width": width,
	})
}

func (p preview) one(w http.ResponseWriter, r *http.Request) {
	pages, err := New(p.dir)
	if err != nil {
		p.broken(w, err)
		return
	}
	q := r.URL.Query()
	for _, s := range Samples(time.Now()) {
		if s.Name != r.PathValue("sample") {
			continue
		}
		st := s.State
		st.preview, st.Lang, st.Theme, st.Refresh, st.Nonce = true, q.Get("lang"), q.Get("theme"), -1, nonce()
		if st.Lang == "" {
			st.Lang = r.Header.Get("Accept-Language")
		}
		var buf bytes.Buffer
		if err := pages.Render(&buf, st); err != nil {
			p.broken(w, err)
			return
		}
		for k, v := range Headers(st.Nonce) {
			w.Header()[k] = v
		}
		_, _ = w.Write(buf.Bytes())
		_ = previewIndex.ExecuteTemplate(w, "watch", map[string]any{"Nonce": st.Nonce, "Version": p.version()})
		return
	}
	http.NotFound(w, r)
}

// broken shows the error in place of the page, and watches on: saving the mended file brings the page back.
func (p preview) broken(w http.ResponseWriter, err error) {
	n := nonce()
	p.serve(w, n, "broken", map[string]any{"Nonce": n, "Version": p.version(), "Error": err.Error()})
}

func (p preview) serve(w http.ResponseWriter, nonce, name string, data any) {
	var buf bytes.Buffer
	if err := previewIndex.ExecuteTemplate(&buf, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for k, v := range Headers(nonce) {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Security-Policy", w.Header().Get("Content-Security-Policy")+"; frame-src 'self'")
	_, _ = w.Write(buf.Bytes())
}

func (p preview) version() string {
	h := sha256.New()
	if p.dir != "" {
		entries, err := os.ReadDir(p.dir)
		fmt.Fprint(h, err)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") {
				continue
			}
			b, err := os.ReadFile(filepath.Join(p.dir, e.Name()))
			fmt.Fprintf(h, "%s %v %x\n", e.Name(), err, sha256.Sum256(b))
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
