package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the file: 100,000 rooms fit, a log file given by mistake does not.
const maxFile = 16 << 20

// Default returns a configuration with every default and no room.
func Default() *Config {
	c := &Config{src: source{at: map[string]position{}}}
	setDefaults(reflect.ValueOf(c).Elem())
	return c
}

// DefaultRoom returns a room with every default; id, match and capacity are
// the caller's to give.
func DefaultRoom() Room {
	var r Room
	setDefaults(reflect.ValueOf(&r).Elem())
	return r
}

// Load reads, parses and validates the file at path, after the environment has
// been applied (see [Config.ApplyEnv]). The error is [Problems] unless the file
// could not be read.
func Load(path string) (*Config, error) { return LoadEnv(path, os.Getenv) }

// LoadEnv is Load with an environment of the caller's.
func LoadEnv(path string, getenv func(string) string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("config: there is no file %s; give its path with --config, or use --origin and --active without a file", path)
		}
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		return nil, fmt.Errorf("config: %s is a folder; name the file in it", path)
	}
	return read(path, f, info != nil && info.Mode().Perm()&0o044 != 0, getenv)
}

// Read is Load of what r holds; name stands for the file in errors.
func Read(name string, r io.Reader) (*Config, error) { return read(name, r, false, os.Getenv) }

func read(name string, r io.Reader, open bool, getenv func(string) string) (*Config, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("config: reading %s: %w", name, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("config: %s is larger than %s and cannot be a configuration", name, Size(maxFile))
	}
	c, probs := parse(name, data)
	c.src.open = open
	c.ApplyEnv(getenv)
	return c, probs.and(c.check()).orNil()
}

// Parse reads and validates data. Positions carry no file name. On error the
// returned Config holds what could be read.
func Parse(data []byte) (*Config, error) {
	c, probs := parse("", data)
	return c, probs.and(c.check()).orNil()
}

// found is what reading a file found wrong, and which values that leaves out.
type found struct {
	Problems
	unread []string
}

// and adds what checking found, without what only repeats.
func (f found) and(checked Problems) Problems {
	out := f.Problems
	for _, p := range checked {
		if !slices.ContainsFunc(f.unread, func(path string) bool { return path == p.Path || within(path, p.Path) || within(p.Path, path) }) {
			out = append(out, p)
		}
	}
	return out
}

// within reports whether path lies below outer; nothing lies below the root.
func within(path, outer string) bool {
	return outer != "" && (strings.HasPrefix(path, outer+".") || strings.HasPrefix(path, outer+"["))
}

func parse(file string, data []byte) (*Config, found) {
	c := Default()
	c.src.file = file
	d := &decoder{src: c.src}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return c, found{} // an empty file is a file of defaults
		}
		return c, found{Problems: Problems{syntaxProblem(file, data, err)}}
	}
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		d.value("", doc.Content[0], reflect.ValueOf(c).Elem(), 0)
		c.normalise()
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		d.fail(&more, "", "the file holds a second document", "remove the line ---")
	} else if !errors.Is(err, io.EOF) {
		d.probs = append(d.probs, syntaxProblem(file, data, err))
	}
	return c, found{d.probs, d.unread}
}

// normalise brings what may be written in several ways into one.
func (c *Config) normalise() {
	c.Public.URL = strings.TrimSuffix(c.Public.URL, "/")
	for i := range c.Rooms {
		r := &c.Rooms[i]
		r.Origin = strings.TrimSuffix(r.Origin, "/")
		for j := range r.Match {
			r.Match[j].Host = strings.ToLower(r.Match[j].Host)
		}
	}
}

// yamlLine finds the line in the YAML library's own message.
var yamlLine = regexp.MustCompile(`^yaml: line (\d+): (.*)$`)

// tabAt finds the first tab in the indentation from a line on, which the library names or, often, the line before it.
func tabAt(data []byte, from int) (line, col int) {
	for text := range bytes.Lines(data) {
		if line++; line >= from {
			indent := text[:len(text)-len(bytes.TrimLeft(text, " \t-"))]
			if i := bytes.IndexByte(indent, '\t'); i >= 0 {
				return line, i + 1
			}
		}
	}
	return 0, 0
}

func syntaxProblem(file string, data []byte, err error) Problem {
	p := Problem{File: file, What: strings.TrimPrefix(err.Error(), "yaml: ")}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		p.What = m[2]
	}
	unclear := strings.Contains(p.What, "cannot start any token")
	if line, col := tabAt(data, p.Line); line > 0 && (unclear || strings.Contains(p.What, "tab character")) {
		p.Line, p.Col, p.What, p.Mend = line, col, "a tab in the indentation", "YAML is indented by spaces, never by tabs: use spaces"
		return p
	}
	switch {
	case unclear:
		p.Mend = "a value that begins with a tab, or with @, ` or %, needs quotes"
	case strings.Contains(p.What, "mapping values are not allowed"):
		p.Mend = "check the indentation, and put a value that holds a colon into quotes"
	case strings.Contains(p.What, "did not find expected"):
		p.Mend = "check the indentation and that every [ { and quote is closed, in this line or before it"
	case strings.Contains(p.What, "unknown anchor"):
		p.Mend = "a value that begins with * needs quotes"
	default:
		p.Mend = "this is not valid YAML"
	}
	return p
}

// ApplyEnv takes the secrets of the environment: USHER_ADMIN_TOKEN,
// USHER_SERVICE_TOKENS (comma-separated), USHER_KEYS, USHER_KEEPER_SINK,
// USHER_REDIS_PASSWORD and USHER_SENTINEL_PASSWORD. Each replaces what the file says; an unset or empty variable changes nothing.
func (c *Config) ApplyEnv(getenv func(string) string) {
	if v := strings.TrimSpace(getenv("USHER_ADMIN_TOKEN")); v != "" {
		c.Admin.Token = NewSecret(v)
		c.src.forget("admin.token", "USHER_ADMIN_TOKEN")
	}
	if v := getenv("USHER_SERVICE_TOKENS"); strings.TrimSpace(v) != "" {
		c.Service.Tokens = nil
		c.src.forget("service.tokens", "USHER_SERVICE_TOKENS")
		for tok := range strings.SplitSeq(v, ",") {
			if tok = strings.TrimSpace(tok); tok != "" {
				c.Service.Tokens = append(c.Service.Tokens, NewSecret(tok))
			}
		}
	}
	if v := strings.TrimSpace(getenv("USHER_KEYS")); v != "" {
		c.Keys.Inline = NewSecret(v)
	}
	if v := strings.TrimSpace(getenv("USHER_KEEPER_SINK")); v != "" {
		c.Keeper.Sink = NewSecret(v)
		c.src.forget("keeper.sink", "USHER_KEEPER_SINK")
	}
	if c.Engine.Kind != "redis" { // they are other programs' too
		return
	}
	if v := getenv("USHER_REDIS_PASSWORD"); v != "" {
		c.Engine.Password = NewSecret(v)
		c.src.forget("engine.password", "USHER_REDIS_PASSWORD")
	}
	if v := getenv("USHER_SENTINEL_PASSWORD"); v != "" {
		c.Engine.SentinelPassword = NewSecret(v)
		c.src.forget("engine.sentinel_password", "USHER_SENTINEL_PASSWORD")
	}
}
