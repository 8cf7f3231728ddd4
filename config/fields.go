package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// keyOf gives the YAML key of a field, or "" if the file cannot set it.
func keyOf(f reflect.StructField) string {
	if key := f.Tag.Get("yaml"); key != "-" {
		return key
	}
	return ""
}

// fieldsOf gives the fields that the file can set.
func fieldsOf(t reflect.Type) []reflect.StructField {
	var out []reflect.StructField
	for f := range t.Fields() {
		if keyOf(f) != "" {
			out = append(out, f)
		}
	}
	return out
}

func keysOf(t reflect.Type) []string {
	var out []string
	for _, f := range fieldsOf(t) {
		out = append(out, keyOf(f))
	}
	return out
}

func fieldByKey(t reflect.Type, key string) (reflect.StructField, bool) {
	for _, f := range fieldsOf(t) {
		if keyOf(f) == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// setDefaults fills v and what lies in it from the default tags.
func setDefaults(v reflect.Value) {
	if v.Kind() != reflect.Struct || scalarType(v.Type()) {
		return
	}
	for _, f := range fieldsOf(v.Type()) {
		if def, ok := f.Tag.Lookup("default"); ok {
			if err := setScalar(v.FieldByIndex(f.Index), def); err != nil {
				panic(fmt.Sprintf("config: default of %s.%s: %v", v.Type(), f.Name, err))
			}
			continue
		}
		setDefaults(v.FieldByIndex(f.Index))
	}
}

// unknownMend says what an unknown key may have meant: a misspelt neighbour, a
// key of another section, or, failing both, the keys there are.
func unknownMend(path string, t reflect.Type, key string) string {
	if near := nearest(key, keysOf(t)); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if homes := homesOf(key); len(homes) > 0 && len(homes) <= 2 {
		return fmt.Sprintf("it belongs under %s", strings.Join(homes, " or "))
	}
	return "the keys here are " + strings.Join(keysOf(t), ", ")
}

// homesOf finds the sections that have a key of that name.
func homesOf(key string) []string {
	var out []string
	var walk func(path string, t reflect.Type)
	walk = func(path string, t reflect.Type) {
		for _, f := range fieldsOf(t) {
			if keyOf(f) == key && path != "" {
				out = append(out, path)
			}
			ft := f.Type
			at := joinPath(path, keyOf(f))
			if ft.Kind() == reflect.Slice {
				ft, at = ft.Elem(), at+"[]"
			}
			if ft.Kind() == reflect.Struct && !scalarType(ft) {
				walk(at, ft)
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
	slices.Sort(out)
	return slices.Compact(out)
}

// typeName says what is expected, in words.
func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "a duration (5m)"
	case reflect.TypeFor[Size]():
		return "a size (1GiB)"
	case reflect.TypeFor[time.Time]():
		return "a time (RFC 3339)"
	case reflect.TypeFor[netip.Prefix]():
		return "a network (10.0.0.0/8)"
	case reflect.TypeFor[Secret]():
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct:
		return "a mapping"
	}
	return "text"
}

// describe says what a node is, in words.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%q", n.Value)
}

// exampleOf shows how a mapping is written.
func exampleOf(path string, t reflect.Type) string {
	fields := fieldsOf(t)
	if len(fields) == 0 {
		return ""
	}
	f := fields[0]
	val := f.Tag.Get("example")
	if val == "" {
		val = f.Tag.Get("default")
	}
	if val == "" {
		val = "…"
	}
	key := path[strings.LastIndexByte(path, '.')+1:]
	if i := strings.IndexByte(key, '['); i >= 0 {
		return fmt.Sprintf("write - %s: %s", keyOf(f), val)
	}
	if key == "" {
		return ""
	}
	return fmt.Sprintf("write %s: {%s: %s}", key, keyOf(f), val)
}
