package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/config"
)

// comments holds the comment of each field, by "Type.Field".
type comments map[string]string

func (c comments) read(file string) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		st, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, f := range st.Fields.List {
			for _, name := range f.Names {
				c[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
			}
		}
		return true
	})
	return nil
}

// node is one schema; encoding/json sorts the keys, so the file is stable.
type node map[string]any

func buildSchema(docs comments) ([]byte, error) {
	root, err := schemaOf(docs, reflect.TypeFor[config.Config](), "")
	if err != nil {
		return nil, err
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = "https://github.com/ushergo/usher/config/schema.json"
	root["title"] = "usher configuration"
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err = enc.Encode(root)
	return buf.Bytes(), err
}

func schemaOf(docs comments, t reflect.Type, tag reflect.StructTag) (node, error) {
	switch t {
	case reflect.TypeFor[config.Secret]():
		return node{"type": "string", "minLength": 0, "writeOnly": true}, nil
	case reflect.TypeFor[time.Duration]():
		return node{"anyOf": []node{{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`}, {"const": 0}}}, nil
	case reflect.TypeFor[config.Size]():
		return node{"anyOf": []node{{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? ?([kKMGT]?B|[KMGT]iB)?$`}, {"type": "integer", "minimum": 0}}}, nil
	case reflect.TypeFor[time.Time]():
		return node{"anyOf": []node{{"type": "string", "format": "date-time"}, {"const": ""}}}, nil
	case reflect.TypeFor[netip.Prefix]():
		return node{"type": "string", "pattern": `^[0-9A-Fa-f.:]+/[0-9]{1,3}$`}, nil
	}
	switch t.Kind() {
	case reflect.String:
		n := node{"type": "string"}
		if choices := tag.Get("enum"); choices != "" {
			n["enum"] = strings.Split(choices, ",")
		}
		if pat := tag.Get("pattern"); pat != "" {
			n["pattern"] = "^(?:" + pat + ")$"
		}
		return n, nil
	case reflect.Bool:
		return node{"type": "boolean"}, nil
	case reflect.Int, reflect.Int64:
		n := node{"type": "integer"}
		for key, bound := range map[string]string{"minimum": tag.Get("min"), "maximum": tag.Get("max")} {
			if bound != "" {
				n[key], _ = strconv.Atoi(bound)
			}
		}
		return n, nil
	case reflect.Slice:
		items, err := schemaOf(docs, t.Elem(), tag)
		return node{"type": []string{"array", "null"}, "items": items}, err
	case reflect.Struct:
		return structSchema(docs, t)
	}
	return nil, fmt.Errorf("no schema for %s", t)
}

func structSchema(docs comments, t reflect.Type) (node, error) {
	props := node{}
	var required []string
	for f := range t.Fields() {
		key := f.Tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		n, err := schemaOf(docs, f.Type, f.Tag)
		if err != nil {
			return nil, err
		}
		doc := docs[t.Name()+"."+f.Name]
		if doc == "" {
			return nil, fmt.Errorf("%s.%s has no comment", t.Name(), f.Name)
		}
		n["description"] = doc
		if def, ok := f.Tag.Lookup("default"); ok {
			n["default"] = typed(f.Type, def)
		}
		if ex, ok := f.Tag.Lookup("example"); ok {
			n["examples"] = []any{typed(f.Type, ex)}
		}
		if f.Tag.Get("required") == "true" {
			required = append(required, key)
		}
		props[key] = n
	}
	out := node{"type": []string{"object", "null"}, "additionalProperties": false, "properties": props}
	if required != nil {
		out["required"] = required
		out["type"] = "object"
	}
	return out, nil
}

// typed gives a tag's text as the JSON value of its type.
func typed(t reflect.Type, text string) any {
	if t.Kind() == reflect.Int {
		n, _ := strconv.Atoi(text)
		return n
	}
	return text
}
