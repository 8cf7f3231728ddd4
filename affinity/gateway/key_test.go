package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestKeyIsFound(t *testing.T) {
	k := Key{Header: "X-Account", Cookie: "account", Path: "/accounts/{key}/", Query: "account", JSON: "user.account"}
	for _, tc := range []struct {
		name, target, body string
		set                func(*http.Request)
		want               string
		err                error
	}{
		{name: "header", target: "/?account=q", set: func(r *http.Request) { r.Header.Set("x-account", "h") }, want: "h"},
		{name: "header twice", target: "/", set: func(r *http.Request) { r.Header["X-Account"] = []string{"a", "b"} }, err: errTwoKeys},
		{name: "cookie", target: "/", set: func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "account", Value: "c"}) }, want: "c"},
		{name: "path", target: "/accounts/p%20q/x/y", want: "p q"},
		{name: "path alone", target: "/accounts/p", want: "p"},
		{name: "path empty", target: "/accounts//x", err: errNoKey},
		{name: "query", target: "/other?account=q", want: "q"},
		{name: "query twice", target: "/other?account=q&account=r", err: errTwoKeys},
		{name: "json", target: "/", body: `{"user":{"account":"j"}}`, want: "j"},
		{name: "json number", target: "/", body: ` {"user":{"account":12345678901234567890}} `, want: "12345678901234567890"},
		{name: "json twice", target: "/", body: `{"user":{"account":"a","x":[{"account":1}],"account":"b"}}`, err: errTwoKeys},
		{name: "json twice, outside", target: "/", body: `{"user":{"account":"a"},"user":{"account":"a"}}`, err: errTwoKeys},
		{name: "json twice, elsewhere", target: "/", body: `{"x":1,"x":{"user":{"account":"z"}},"user":{"account":"a"}}`, want: "a"},
		{name: "json of another shape", target: "/", body: `{"user":["account"]}`, err: errNoKey},
		{name: "no json", target: "/", body: `account=x`, err: errNoKey},
		{name: "json too large", target: "/", body: `{"user":{"account":"` + strings.Repeat("x", 200) + `"}}`, err: errTooLarge},
		{name: "nothing", target: "/", err: errNoKey},
	} {
		for _, length := range []bool{true, false} {
			r := httptest.NewRequest("POST", tc.target, strings.NewReader(tc.body))
			if !length && tc.body != "" {
				r.ContentLength = -1
			}
			if tc.set != nil {
				tc.set(r)
			}
			got, b, err := k.find(r, 128)
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("%s: %q, %v", tc.name, got, err)
			}
			if err != nil {
				continue
			}
			if again, err := io.ReadAll(r.Body); err != nil || string(again) != tc.body {
				t.Errorf("%s: the body became %q, %v", tc.name, again, err)
			}
			if b.all && !bytes.Equal(b.kept, []byte(tc.body)) {
				t.Errorf("%s: kept %q", tc.name, b.kept)
			}
		}
	}
	for _, wrong := range []Key{{}, {Path: "accounts/{key}"}, {Path: "/a{key}"}, {Path: "/{key}/{key}"}} {
		if wrong.check() == nil {
			t.Errorf("%+v is taken", wrong)
		}
	}
}

func FuzzJSONKey(f *testing.F) {
	f.Add(`{"user":{"account":"j"}}`, "user.account")
	f.Add(`{"a":1}{"a":2}`, "a")
	f.Fuzz(func(t *testing.T, doc, path string) {
		key, err := fieldOf([]byte(doc), path)
		if (err == nil) != (key != "") {
			t.Errorf("%q, %v", key, err)
		}
	})
}
