package httpflight

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/ushergo/usher/flight"
)

// Tripper is the http.RoundTripper that Transport makes.
type Tripper struct {
	core
	next http.RoundTripper
}

// Transport does what Handler does on the other side of a reverse proxy: it shares the requests that the proxy sends, so
// that whatever the proxy does with each client's response (its own cookies, its own headers) stays that client's own.
// It panics on options that Validate refuses.
//
//	proxy.Transport = httpflight.Transport(proxy.Transport, httpflight.Options{})
//
// Refusals are RoundTrip's errors; Refusal says what to tell a client. A request that the origin did not answer is a
// failure to all who wait for it, and backs off. Options.OnError is not used.
func Transport(next http.RoundTripper, opts Options) *Tripper {
	return &Tripper{core: newCore(opts), next: next}
}

// RoundTrip implements http.RoundTripper.
func (t *Tripper) RoundTrip(r *http.Request) (*http.Response, error) {
	key, ok := t.keys.key(r)
	if !ok {
		t.past.Add(1)
		res, err := t.next.RoundTrip(r)
		if !safe(r.Method) {
			h := http.Header{}
			if res != nil {
				h = res.Header
			}
			t.forget(r, h)
		}
		return res, err
	}
	if r.Body != nil {
		r.Body.Close() //nolint:errcheck // empty
	}
	s, rd, err := t.get(r, key, t.ask)
	var p *flight.PanicError
	if errors.As(err, &p) {
		err = errors.New("httpflight: the transport panicked") // the log has it
	}
	if err != nil {
		return nil, err
	}
	return s.response(r, rd), nil
}

// ask makes the shared request.
func (t *Tripper) ask(rec *recorder, out *http.Request) error {
	res, err := t.next.RoundTrip(out)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	maps.Copy(rec.header, res.Header)
	if len(res.Trailer) > 0 {
		rec.header["Trailer"] = []string{strings.Join(slices.Sorted(maps.Keys(res.Trailer)), ", ")}
	}
	if _, ok := res.Header["Content-Length"]; !ok && res.ContentLength >= 0 && !res.Uncompressed {
		rec.header["Content-Length"] = []string{strconv.FormatInt(res.ContentLength, 10)}
	}
	rec.WriteHeader(res.StatusCode)
	if _, err := io.Copy(writerOnly{rec}, res.Body); err != nil {
		return err
	}
	for name, vs := range res.Trailer {
		if _, announced := rec.s.trailers()[name]; !announced {
			name = http.TrailerPrefix + name
		}
		rec.header[name] = vs
	}
	return nil
}

type writerOnly struct{ io.Writer }

// response is s for one client of a transport.
func (s *stream) response(r *http.Request, rd *reader) *http.Response {
	res := &http.Response{
		Status: strconv.Itoa(s.code) + " " + http.StatusText(s.code), StatusCode: s.code,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: s.header.Clone(), ContentLength: -1, Request: r,
	}
	if n, err := strconv.ParseInt(s.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		res.ContentLength = n
	}
	res.Trailer = s.trailers()
	delete(res.Header, "Trailer")
	if r.Method == http.MethodHead || s.code == http.StatusNoContent || s.code == http.StatusNotModified {
		rd.close()
		res.Body = http.NoBody
		return res
	}
	res.Body = &body{ctx: r.Context(), s: s, rd: rd, res: res}
	return res
}

// trailers are the names that the header announces, or nil.
func (s *stream) trailers() (names http.Header) {
	for _, line := range s.header["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			if names == nil {
				names = http.Header{}
			}
			names[http.CanonicalHeaderKey(strings.TrimSpace(name))] = nil
		}
	}
	return names
}

// body reads a stream as one response's body. As with net/http's, Close may be called while a Read waits, and ends it.
type body struct {
	ctx context.Context
	s   *stream
	rd  *reader
	res *http.Response
}

func (b *body) Read(p []byte) (int, error) {
	select {
	case <-b.rd.gone:
		return 0, http.ErrBodyReadAfterClose
	default:
	}
	if len(p) == 0 {
		return 0, nil
	}
	chunk, err := b.rd.next(b.ctx, func() {})
	if err == io.EOF {
		for name, vs := range b.s.trailer {
			if b.res.Trailer == nil {
				b.res.Trailer = http.Header{}
			}
			b.res.Trailer[strings.TrimPrefix(name, http.TrailerPrefix)] = vs
		}
	}
	if err != nil {
		return 0, err
	}
	n := copy(p, chunk)
	b.rd.advance(n)
	return n, nil
}

func (b *body) Close() error {
	b.rd.close()
	return nil
}
