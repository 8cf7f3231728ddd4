package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"
)

// Validate checks every value and every pair of values that must agree. All
// problems are reported at once, as [Problems]; nil means that usher can start
// with this configuration as far as the configuration goes. It reads the disk
// only to see whether the folders and files that are named exist.
func (c *Config) Validate() error { return c.check().orNil() }

func (c *Config) check() Problems {
	k := &checker{c: c, src: c.src}
	k.fields("", reflect.ValueOf(c).Elem(), "")
	k.engine()
	k.listeners()
	k.secrets()
	k.rooms()
	k.gates()
	k.routes()
	k.relays()
	k.keeper()
	return k.probs
}

// Warnings gives what is allowed but likely a mistake or a danger, in the
// order of the file. It is meant for a configuration that Validate accepts.
func (c *Config) Warnings() Problems {
	k := &checker{c: c, src: c.src}
	k.warnings()
	return k.probs.sorted()
}

// ProblemAt makes a problem with the value at path (rooms[0].page.dir) that
// somebody else has found; it points at the value's place in the file.
func (c *Config) ProblemAt(path, what, mend string) Problem {
	return c.src.problem(path, what, mend)
}

type checker struct {
	c     *Config
	src   source
	probs Problems
}

func (k *checker) add(path, what, mend string) {
	k.probs = append(k.probs, k.src.problem(path, what, mend))
}

// fields checks what the tags say: required, enum, pattern, min and max.
func (k *checker) fields(path string, v reflect.Value, tag reflect.StructTag) {
	t := v.Type()
	switch {
	case scalarType(t):
		k.scalar(path, v, tag)
	case t.Kind() == reflect.Slice:
		for i := range v.Len() {
			k.fields(fmt.Sprintf("%s[%d]", path, i), v.Index(i), tag)
		}
	case t.Kind() == reflect.Struct:
		for _, f := range fieldsOf(t) {
			k.fields(joinPath(path, keyOf(f)), v.FieldByIndex(f.Index), f.Tag)
		}
	}
}

func (k *checker) scalar(path string, v reflect.Value, tag reflect.StructTag) {
	if v.Kind() == reflect.String {
		k.text(path, v.String(), tag)
		return
	}
	if s, ok := v.Interface().(Secret); ok {
		k.secret(path, s, tag)
		return
	}
	if v.Kind() != reflect.Int && v.Kind() != reflect.Int64 {
		return
	}
	lo, hi := tag.Get("min"), tag.Get("max")
	n := v.Int()
	if n == 0 && tag.Get("required") == "true" && !k.src.set(path) {
		k.add(path, "is missing", fmt.Sprintf("write %s: %s", lastKey(path), tag.Get("example")))
		return
	}
	if lo != "" && n < mustParse(v.Type(), lo) || hi != "" && n > mustParse(v.Type(), hi) {
		mend := "the least is " + lo
		if hi != "" {
			mend = fmt.Sprintf("choose from %s to %s", lo, hi)
		}
		k.add(path, show(v)+" is out of range", mend)
	}
}

func (k *checker) text(path, s string, tag reflect.StructTag) {
	if s == "" {
		if tag.Get("required") == "true" {
			k.add(path, "is missing", fmt.Sprintf("write %s: %s", lastKey(path), tag.Get("example")))
		}
		return
	}
	if strings.ContainsAny(s, "\x00\n\r") {
		k.add(path, "holds a line break", "write it in one line")
		return
	}
	if choices := tag.Get("enum"); choices != "" {
		list := strings.Split(choices, ",")
		for _, choice := range list {
			if s == choice {
				return
			}
		}
		mend := "choose " + strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
		if near := nearest(s, list); near != "" {
			mend = fmt.Sprintf("did you mean %q?", near)
		}
		k.add(path, fmt.Sprintf("%q is not one of the choices", s), mend)
	}
	if pat := tag.Get("pattern"); pat != "" && !regexp.MustCompile("^(?:"+pat+")$").MatchString(s) {
		k.add(path, fmt.Sprintf("%q is not allowed", s), "use "+tag.Get("patternhelp"))
	}
}

func (k *checker) secret(path string, s Secret, tag reflect.StructTag) {
	least := int(mustParse(reflect.TypeFor[int](), tag.Get("min")))
	got := len(s.Reveal())
	switch {
	case got == 0 && strings.HasSuffix(path, "]"):
		k.add(path, "is empty", "remove it, or write a token of at least 16 characters")
	case got == 0:
	case got < least:
		k.add(path, fmt.Sprintf("is too short (%d characters)", got), fmt.Sprintf("use at least %d, as from: openssl rand -hex 32", least))
	case strings.ContainsAny(s.Reveal(), " \t\r\n"):
		k.add(path, "holds white space, which no Authorization header can carry", "use letters and digits, as from: openssl rand -hex 32")
	}
}

// mustParse reads a bound of a tag in the unit of its field.
func mustParse(t reflect.Type, text string) int64 {
	if text == "" {
		return 0
	}
	v := reflect.New(t).Elem()
	if err := setScalar(v, text); err != nil {
		panic("config: tag: " + err.Error())
	}
	return v.Int()
}

// show prints a number as the file would write it.
func show(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return formatDuration(x)
	case Size:
		return x.String()
	default:
		return fmt.Sprint(x)
	}
}

func lastKey(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }
