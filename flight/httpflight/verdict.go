package httpflight

import (
	"errors"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/flight"
)

// verdict is what a response's header says about sharing it: nil, flight.NotShareable, or a failure with its class.
func (k *keyer) verdict(code int, h http.Header, now time.Time) error {
	if k.personal(code, h) {
		return flight.NotShareable(0)
	}
	switch {
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable && h.Get("Retry-After") != "":
		return &flight.Error{Class: flight.Throttled, After: retryAfter(h.Get("Retry-After"), now), Err: &StatusError{code}}
	case code >= 500:
		return &flight.Error{Class: flight.Transient, Err: &StatusError{code}}
	}
	return nil
}

// StatusError is the failure that a response of the origin stands for.
type StatusError struct{ Code int }

func (e *StatusError) Error() string { return "the origin answered " + strconv.Itoa(e.Code) }

// personal: the response is for the client who asked, or cannot be given to several.
func (k *keyer) personal(code int, h http.Header) bool {
	if code == http.StatusPartialContent || len(h["Set-Cookie"]) > 0 || len(h["Usher-Session"]) > 0 {
		return true
	}
	if ct := strings.ToLower(h.Get("Content-Type")); strings.HasPrefix(ct, "text/event-stream") || strings.HasPrefix(ct, "multipart/x-mixed-replace") {
		return true // without an end: who comes late must not get it from the start
	}
	if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && n > k.opts.MaxBody {
		return true
	}
	for _, line := range h["Cache-Control"] {
		if unsharedControl(line) {
			return true
		}
	}
	for _, line := range h["Vary"] {
		for name := range strings.SplitSeq(line, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
			if name != "" && !k.covers(name) {
				return true
			}
		}
	}
	return false
}

// unsharedControl reads one Cache-Control line: whether it has the directive private or no-store, with or without
// arguments. What cannot be read is taken for private.
func unsharedControl(line string) bool {
	for line != "" {
		line = strings.TrimLeft(line, " \t,")
		end := strings.IndexAny(line, ",=")
		if end < 0 {
			end = len(line)
		}
		switch strings.ToLower(strings.TrimRight(line[:end], " \t")) {
		case "private", "no-store":
			return true
		}
		line = line[end:]
		if !strings.HasPrefix(line, "=") {
			continue
		}
		line = strings.TrimLeft(line[1:], " \t")
		if !strings.HasPrefix(line, `"`) {
			if end = strings.IndexByte(line, ','); end < 0 {
				return strings.Contains(line, `"`)
			}
			if strings.Contains(line[:end], `"`) {
				return true
			}
			line = line[end:]
			continue
		}
		rest, ok := afterQuoted(line)
		if !ok {
			return true
		}
		line = rest
	}
	return false
}

// afterQuoted is what follows the quoted string at the start of s: nothing, or a comma and more.
func afterQuoted(s string) (string, bool) {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			rest := strings.TrimLeft(s[i+1:], " \t")
			return rest, rest == "" || rest[0] == ','
		}
	}
	return "", false
}

// retryAfter is the pause that the origin asks for, or 0.
func retryAfter(v string, now time.Time) time.Duration {
	if s, err := strconv.ParseInt(strings.TrimSpace(v), 10, 32); err == nil && s >= 0 {
		return time.Duration(s) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// Refusal says how to tell a client of an error of this package or of package flight: a status, a stable code, and when to
// come again (0: no word on it). ok is false for errors of others, for which it says 502.
func Refusal(err error) (status int, code string, retry time.Duration, ok bool) {
	var back *flight.BackoffError
	switch {
	case errors.As(err, &back):
		return http.StatusServiceUnavailable, "origin_failing", back.Wait, true
	case errors.Is(err, flight.ErrBusy):
		return http.StatusServiceUnavailable, "origin_busy", time.Second, true
	case errors.Is(err, flight.ErrTimeout):
		return http.StatusGatewayTimeout, "origin_timeout", time.Second, true
	case errors.Is(err, flight.ErrClosed):
		return http.StatusServiceUnavailable, "shutting_down", time.Second, true
	}
	return http.StatusBadGateway, "origin_error", 0, false
}
