package admission_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/admission"
)

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func contextWithTimeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

func TestOriginClockThatIsOff(t *testing.T) { // cases/room 14
	now := time.Unix(1_790_000_000, 0)
	for _, c := range []struct {
		off    time.Duration // of the origin's clock
		used   time.Duration // after issue; the token lives five minutes
		code   string
		detail []string
		warned bool
	}{
		{off: 0},
		{off: -30 * time.Second},
		{off: 30 * time.Second},
		{off: 30 * time.Second, used: 5*time.Minute - time.Second},
		{off: -90 * time.Second, code: "token_not_yet", detail: []string{"1m30s", "NTP", "behind usher's"}, warned: true},
		{off: -10 * time.Minute, code: "token_not_yet", detail: []string{"10m0s", "behind usher's"}, warned: true},
		{off: 90 * time.Second, used: time.Minute, warned: true}, // still good: its life is longer than the clock is off
		{off: 90 * time.Second, used: 5 * time.Minute, code: "token_expired", detail: []string{"1m30s", "ahead of usher's"}, warned: true},
		{off: 0, used: 8 * time.Minute, code: "token_expired", detail: []string{"3m0s"}},
	} {
		clock := now
		u := newUsher(t, func() time.Time { return clock })
		text := u.admit(t, "premiere", 5*time.Minute)
		clock = now.Add(c.used)
		var log bytes.Buffer
		h := origin(t, u, admission.Clock(func() time.Time { return clock.Add(c.off) }), admission.Logger(slog.New(slog.NewTextHandler(&log, nil))))
		w := ask(h, "X-Usher-Token", text)
		if c.code == "" && w.Code != http.StatusOK {
			t.Errorf("off %v, used after %v: %s", c.off, c.used, w.Body)
		}
		if c.code != "" {
			p := refused(t, w)
			if p.Code != c.code {
				t.Errorf("off %v, used after %v: %s, want %s", c.off, c.used, p.Code, c.code)
			}
			for _, part := range c.detail {
				if !strings.Contains(p.Detail, part) {
					t.Errorf("off %v: %q does not say %q", c.off, p.Detail, part)
				}
			}
			if c.off == 0 && strings.Contains(p.Detail, "usher's.") && strings.Contains(p.Detail, "its clock was") {
				t.Errorf("equal clocks are blamed: %q", p.Detail)
			}
			if w.Header().Get("Location") != "" {
				t.Error("a redirect could loop for ever")
			}
		}
		if warned := strings.Contains(log.String(), "level=WARN"); warned != c.warned {
			t.Errorf("off %v: warned %v, want %v: %s", c.off, warned, c.warned, &log)
		}
	}
}
