package page

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/ushergo/usher/web/static"
)

// scripts are joined in this order into one function, after usher.js (the news: web/static), which makes the one name
// of ours that is global.
var scripts = []string{"words.js", "call.js", "view.js", "main.js"}

var builtinLangs = []string{"en", "ko", "ja"}

const (
	maxLogo = 256 << 10 // it travels inside every page
	maxFile = 1 << 20
)

func builtin() (*Pages, error) {
	p := &Pages{texts: map[string]texts{}, raw: map[string]template.JS{}, packed: map[string][]packed{}}
	for _, lang := range builtinLangs {
		b, err := assets.ReadFile("assets/text/" + lang + ".json")
		if err != nil {
			return nil, err
		}
		t := texts{}
		if err := json.Unmarshal(b, &t); err != nil {
			return nil, fmt.Errorf("page: %s.json: %w", lang, err)
		}
		p.texts[lang] = t
		p.langs = append(p.langs, lang)
	}
	css, err := assets.ReadFile("assets/style.css")
	if err != nil {
		return nil, err
	}
	p.style = template.CSS(squeeze(css))
	var js bytes.Buffer
	js.Write(static.UsherJS)
	js.WriteString("(function () {\n'use strict';\n")
	for _, name := range scripts {
		b, err := assets.ReadFile("assets/" + name)
		if err != nil {
			return nil, err
		}
		js.Write(b)
	}
	js.WriteString("})();")
	p.script = template.JS(squeeze(js.Bytes()))
	p.tmpl, err = template.ParseFS(assets, "assets/page.html", "assets/parts.html")
	return p, err
}

// squeeze drops indentation and lines that are only a comment. It knows no syntax, so our own files keep to one rule:
// no string spans lines.
func squeeze(b []byte) string {
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "//") || strings.HasPrefix(line, "/*") && strings.HasSuffix(line, "*/") {
			continue
		}
		out.WriteString(line)
		out.WriteByte('\n')
	}
	return out.String()
}

var wanted = "page.html, style.css, text.json and one of logo.svg, logo.png, logo.webp"

// overlay lays the folder's files over the built-in page. It goes on after a mistake and joins them all.
func (p *Pages) overlay(dir string) error {
	var errs []error
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("page folder: %w; page.dir must name a folder that usher may read", err)
	}
	logo := ""
	for _, e := range entries {
		name := e.Name()
		path := filepath.Join(dir, name)
		if strings.HasPrefix(name, ".") || strings.HasPrefix(strings.ToUpper(name), "README") || strings.HasSuffix(name, "~") {
			continue
		}
		if e.IsDir() {
			errs = append(errs, fmt.Errorf("%s: a folder; the page's folder may hold %s only", path, wanted))
			continue
		}
		b, err := readFile(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		switch name {
		case "page.html":
			err = p.overlayTemplate(path, b)
		case "style.css":
			err = p.overlayStyle(path, b)
		case "text.json":
			err = p.overlayText(path, b)
		case "logo.svg", "logo.png", "logo.webp":
			if logo != "" {
				err = fmt.Errorf("%s: there is also %s; keep one of them", path, logo)
				break
			}
			logo = name
			err = p.overlayLogo(path, b)
		default:
			err = fmt.Errorf("%s: not known; the page's folder may hold %s (names that begin with a dot, and README, are left alone)", path, wanted)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Faults takes what [New] found apart: one error a mistake, in the order of the files.
func Faults(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, Faults(e)...)
	}
	return all
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("page folder: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("page folder: %w", err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d KiB; every visitor downloads it, so make it smaller", path, maxFile>>10)
	}
	return b, nil
}

func (p *Pages) overlayTemplate(path string, b []byte) error {
	// The parts (usher/head, usher/card, …) stay defined beside the operator's page.
	t, err := template.ParseFS(assets, "assets/parts.html")
	if err != nil {
		return err
	}
	if _, err := t.New("page.html").Parse(string(b)); err != nil {
		return fmt.Errorf("%s: %s; docs/page.md lists what a template may use", path, templateError(err))
	}
	p.tmpl = t
	return nil
}

// templateError turns "template: page.html:3: …" into "line 3: …".
func templateError(err error) string {
	s := strings.TrimPrefix(err.Error(), "html/template:")
	s = strings.TrimPrefix(s, "template: ")
	if rest, ok := strings.CutPrefix(s, "page.html:"); ok {
		return "line " + rest
	}
	return s
}

func (p *Pages) overlayStyle(path string, b []byte) error {
	var errs []error
	for i, line := range strings.Split(string(b), "\n") {
		low := strings.ToLower(line)
		if strings.Contains(low, "</style") {
			errs = append(errs, fmt.Errorf("%s: line %d: \"</style\" would end the page's style; take it out", path, i+1))
		}
		if strings.Contains(low, "@import") || remote.MatchString(low) {
			errs = append(errs, fmt.Errorf("%s: line %d: the page loads nothing from other hosts; put it into this file, images and fonts as data: URLs", path, i+1))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	p.style += template.CSS("\n" + string(b))
	return nil
}

var remote = regexp.MustCompile(`url\(\s*["']?\s*(?:https?:)?//`)

var logoTypes = map[string]string{".svg": "image/svg+xml", ".png": "image/png", ".webp": "image/webp"}

func (p *Pages) overlayLogo(path string, b []byte) error {
	if len(b) > maxLogo {
		return fmt.Errorf("%s: %d KiB; a logo travels inside every page, so keep it under %d KiB", path, len(b)>>10, maxLogo>>10)
	}
	ok := false
	ext := filepath.Ext(path)
	switch ext {
	case ".svg":
		ok = bytes.Contains(b, []byte("<svg"))
	case ".png":
		ok = bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n"))
	case ".webp":
		ok = len(b) > 12 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP"
	}
	if !ok {
		return fmt.Errorf("%s: this is no %s image; save the logo in the format that its name says", path, ext[1:])
	}
	// In an <img> an SVG's scripts never run and it can load nothing.
	p.logo = template.URL("data:" + logoTypes[ext] + ";base64," + base64.StdEncoding.EncodeToString(b))
	return nil
}

var langTag = regexp.MustCompile(`^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$`)

func (p *Pages) overlayText(path string, b []byte) error {
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
	var all map[string]map[string]string
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&all); err != nil {
		return fmt.Errorf("%s: line %d: %s; it must look like {\"en\": {\"waiting.heading\": \"…\"}}", path, lineOf(b, dec, err), plain(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: line %d: something follows the end; keep one object in the file", path, lineAt(b, dec.InputOffset()))
	}
	ours := p.texts[fallback]
	var errs []error
	for _, lang := range sorted(all) {
		if !langTag.MatchString(lang) {
			errs = append(errs, fmt.Errorf("%s: line %d: %q is no language tag; write it like \"en\", \"ko\" or \"pt-BR\"", path, lineOfKey(b, lang), lang))
			continue
		}
		base, have := p.texts[lang]
		if !have {
			base = ours // a language that we do not have begins as English
			p.langs = append(p.langs, lang)
		}
		merged := texts{}
		for k, v := range base {
			merged[k] = v
		}
		for _, k := range sorted(all[lang]) {
			v := all[lang][k]
			if _, ok := ours[k]; !ok {
				errs = append(errs, fmt.Errorf("%s: line %d: %q is not a text of the page%s", path, lineOfKey(b, k), k, suggest(k, ours)))
				continue
			}
			if bad := foreignPlaceholder(v, p.texts, k); bad != "" {
				errs = append(errs, fmt.Errorf("%s: line %d: %q has no %s%s", path, lineOfKey(b, k), k, bad, offers(p.texts, k)))
				continue
			}
			merged[k] = v
		}
		p.texts[lang] = merged
	}
	return errors.Join(errs...)
}

var placeholder = regexp.MustCompile(`\{[a-z_]+\}`)

func allowed(all map[string]texts, key string) map[string]bool {
	set := map[string]bool{}
	for _, lang := range builtinLangs {
		for _, ph := range placeholder.FindAllString(all[lang][key], -1) {
			set[ph] = true
		}
	}
	if strings.HasSuffix(key, ".title") || strings.HasPrefix(key, "waiting.title") {
		set["{name}"] = true
	}
	if strings.Contains(key, ".lead") {
		set["{grace}"], set["{claim}"], set["{time}"] = true, true, true
	}
	return set
}

func foreignPlaceholder(v string, all map[string]texts, key string) string {
	ok := allowed(all, key)
	for _, ph := range placeholder.FindAllString(v, -1) {
		if !ok[ph] {
			return ph
		}
	}
	return ""
}

func offers(all map[string]texts, key string) string {
	keys := sorted(allowed(all, key))
	if len(keys) == 0 {
		return "; it takes no placeholder"
	}
	return "; it may use " + strings.Join(keys, ", ")
}

// suggest names the known keys: those of the same family when there are any, else all.
func suggest(key string, ours texts) string {
	family, _, _ := strings.Cut(key, ".")
	var near, every []string
	for _, k := range sorted(ours) {
		every = append(every, k)
		if strings.HasPrefix(k, family+".") {
			near = append(near, k)
		}
	}
	if len(near) > 0 {
		every = near
	}
	return "; known are: " + strings.Join(every, ", ")
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func lineOf(b []byte, dec *json.Decoder, err error) int {
	var syn *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syn):
		return lineAt(b, syn.Offset)
	case errors.As(err, &typ):
		return lineAt(b, typ.Offset)
	}
	return lineAt(b, dec.InputOffset())
}

func lineAt(b []byte, offset int64) int {
	offset = min(max(offset, 0), int64(len(b)))
	return 1 + bytes.Count(b[:offset], []byte("\n"))
}

func lineOfKey(b []byte, key string) int {
	quoted, _ := json.Marshal(key)
	i := bytes.Index(b, quoted)
	return lineAt(b, int64(i))
}

func plain(err error) string {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return "a " + typ.Value + " where a text belongs"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// seal marshals the texts and tries the page once in everything that it may have to show.
func (p *Pages) seal() error {
	for lang, t := range p.texts {
		b, err := json.Marshal(t) // escapes <, > and &, so it can end no script
		if err != nil {
			return err
		}
		p.raw[lang] = template.JS(b)
		for _, part := range []string{string(p.style), string(b), string(p.script)} {
			z, err := pack(part)
			if err != nil {
				return err
			}
			p.packed[lang] = append(p.packed[lang], z)
		}
	}
	for _, lang := range p.langs {
		for _, sample := range Samples(time.Unix(1_767_355_200, 0)) {
			s := sample.State
			s.Lang = lang
			var buf bytes.Buffer
			if err := p.Render(&buf, s); err != nil {
				return fmt.Errorf("page.html: %s; docs/page.md lists what a template may use", templateError(errors.Unwrap(err)))
			}
			if !bytes.Contains(buf.Bytes(), []byte(`id="usher-data"`)) {
				return errors.New(`page.html: the script's part is missing; put {{template "usher/script" .}} before </body>`)
			}
			if !slices.Contains([]string{Waiting, Paused}, s.View.State) {
				continue
			}
			if !bytes.Contains(buf.Bytes(), []byte(`data-usher="place"`)) {
				return errors.New(`page.html: there is nowhere to show the place; put {{template "usher/card" .}} into it, or an element with data-usher="place"`)
			}
		}
	}
	return nil
}
