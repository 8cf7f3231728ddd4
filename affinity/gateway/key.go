package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/ushergo/usher/affinity"
)

// Key says where a request has its session's key. The first of those that are set and that the request has counts.
type Key struct {
	Header string // name of a header, as X-Account
	Cookie string // name of a cookie
	Path   string // a pattern like /accounts/{key}: whole segments, and all below it
	Query  string // name of a parameter
	JSON   string // a field of a JSON body, nested by dots like user.account: a string or a number. The body may have MaxReplay bytes
}

func (k Key) check() error {
	if k == (Key{}) {
		return errors.New("gateway: Key: one of Header, Cookie, Path, Query and JSON has to say where the session's key is")
	}
	if k.Path != "" && (!strings.HasPrefix(k.Path, "/") || strings.Count(k.Path, "{key}") != 1 || !strings.Contains(k.Path+"/", "/{key}/")) {
		return fmt.Errorf("gateway: Key.Path %q: write a path with one segment {key}, like /accounts/{key}", k.Path)
	}
	return nil
}

// body is what may be sent again.
type body struct {
	kept []byte
	all  bool // kept is the whole
}

var (
	errNoKey    = errors.New("gateway: the request has no session key")
	errTwoKeys  = errors.New("gateway: the request names its session key twice")
	errTooLarge = errors.New("gateway: the body is too large to look for the session key in it")
	errBadBody  = errors.New("gateway: the body could not be read to its end")
)

// find reads the key. A body that it had to read is there again, byte for byte.
func (k Key) find(r *http.Request, most int64) (string, *body, error) {
	b, err := keep(r, most, false)
	if err != nil {
		return "", nil, err
	}
	key, err := k.outside(r)
	if err == errNoKey && k.JSON != "" {
		if b, err = keep(r, most, true); err == nil {
			key, err = fieldOf(b.kept, k.JSON)
		}
	}
	if err != nil {
		return "", nil, err
	}
	if len(key) > affinity.MaxKey {
		return "", nil, fmt.Errorf("%w: it has %d bytes, at most %d", affinity.ErrBadRequest, len(key), affinity.MaxKey)
	}
	return key, b, nil
}

// outside looks everywhere but in the body. A key that is there twice is refused: the instance might take the other.
func (k Key) outside(r *http.Request) (string, error) {
	var found []string
	if k.Header != "" {
		found = nonEmpty(r.Header.Values(k.Header))
	}
	if k.Cookie != "" && len(found) == 0 {
		for _, c := range r.CookiesNamed(k.Cookie) {
			found = append(found, nonEmpty([]string{c.Value})...)
		}
	}
	if k.Path != "" && len(found) == 0 {
		found = nonEmpty([]string{segment(k.Path, r.URL.Path)})
	}
	if k.Query != "" && len(found) == 0 {
		found = nonEmpty(r.URL.Query()[k.Query])
	}
	switch {
	case len(found) == 0:
		return "", errNoKey
	case len(found) > 1:
		return "", errTwoKeys
	}
	return found[0], nil
}

func nonEmpty(values []string) (out []string) {
	for _, v := range values {
		if v = strings.TrimSpace(v); v != "" {
			out = append(out, v)
		}
	}
	return out
}

func segment(pattern, path string) string {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	if want[len(want)-1] == "" {
		want = want[:len(want)-1]
	}
	if len(got) < len(want) {
		return ""
	}
	key := ""
	for i, w := range want {
		if w == "{key}" {
			key = got[i]
		} else if w != got[i] {
			return ""
		}
	}
	return key
}

func fieldOf(doc []byte, path string) (string, error) {
	for name := range strings.SplitSeq(path, ".") {
		var err error
		if doc, err = member(doc, name); err != nil {
			return "", err
		}
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return "", errNoKey
	}
	switch v := v.(type) {
	case string:
		if v != "" {
			return v, nil
		}
	case json.Number:
		return v.String(), nil
	}
	return "", errNoKey
}

// member is the value of an object's field. One that is there twice is refused: readers differ in which they take.
func member(doc []byte, name string) (value json.RawMessage, err error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errNoKey
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, errNoKey
		}
		var v json.RawMessage
		if dec.Decode(&v) != nil {
			return nil, errNoKey
		}
		if t == name && value != nil {
			return nil, errTwoKeys
		}
		if t == name {
			value = v
		}
	}
	if _, err := dec.Token(); err != nil || value == nil {
		return nil, errNoKey
	}
	return value, nil
}

// keep reads a body that may have to be sent again: one of known length within the bound, or any within it when all says
// so. What was read stands in front of the rest.
func keep(r *http.Request, most int64, all bool) (*body, error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return &body{all: true}, nil
	}
	if r.ContentLength > most || r.ContentLength < 0 && !all {
		if all {
			return nil, errTooLarge
		}
		return &body{}, nil
	}
	if b, ok := r.Body.(*keptBody); ok {
		return &body{b.kept, true}, nil
	}
	kept, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadBody, err)
	}
	if int64(len(kept)) > most {
		return nil, errTooLarge
	}
	r.Body = &keptBody{bytes.NewReader(kept), r.Body, kept}
	return &body{kept, true}, nil
}

// keptBody is a body that was read and is read again.
type keptBody struct {
	io.Reader
	io.Closer
	kept []byte
}
