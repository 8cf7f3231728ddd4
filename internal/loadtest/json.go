package loadtest

import (
	_ "embed"
	"encoding/json"
	"io"
	"reflect"
)

// JSONSchema describes what WriteJSON writes (JSON Schema 2020-12). A test holds the two together.
//
//go:embed report.schema.json
var JSONSchema string

// WriteJSON writes r in the form that JSONSchema describes. Lists are never null.
func (r *Report) WriteJSON(w io.Writer) error {
	fillLists(reflect.ValueOf(r).Elem())
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}

// fillLists makes nil slices empty ones.
func fillLists(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			fillLists(v.Index(i))
		}
	case reflect.Struct:
		if v.Type().PkgPath() != reflect.TypeFor[Report]().PkgPath() {
			return
		}
		for i := range v.NumField() {
			fillLists(v.Field(i))
		}
	}
}
