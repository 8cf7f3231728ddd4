package config

import (
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"
)

// Secret is a string that never prints: every way of formatting, marshalling
// or logging it gives [redacted]. Reveal gives the string itself.
type Secret struct{ value string }

const redacted = "[redacted]"

// NewSecret wraps s.
func NewSecret(s string) Secret { return Secret{s} }

// Reveal returns the secret itself. Hand it to what needs it, never to a log.
func (s Secret) Reveal() string { return s.value }

// Empty reports whether there is no secret.
func (s Secret) Empty() bool { return s.value == "" }

// Format prints [redacted] for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// String gives [redacted], or nothing for an empty secret.
func (s Secret) String() string {
	if s.value == "" {
		return ""
	}
	return redacted
}

// MarshalText gives what String gives.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML gives what String gives.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue gives what String gives.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Size is a number of bytes.
type Size int64

type unit struct {
	name string
	mul  int64
}

// units go from the longest name to the shortest, so that MiB is not read as B.
func units() []unit {
	return []unit{
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
		{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
		{"B", 1},
	}
}

// ParseSize reads 512MiB, 1GiB, 100MB, 4096 or 4096B. Fractions such as
// 1.5GiB are read too.
func ParseSize(s string) (Size, error) {
	num, mul := strings.TrimSpace(s), int64(1)
	for _, u := range units() {
		if head, ok := strings.CutSuffix(num, u.name); ok {
			num, mul = strings.TrimSpace(head), u.mul
			break
		}
	}
	if n, err := strconv.ParseInt(num, 10, 64); err == nil {
		if n != 0 && (n*mul)/mul != n {
			return 0, fmt.Errorf("%q is too large", s)
		}
		return Size(n * mul), nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(f) || math.Abs(f*float64(mul)) > 1<<62 {
		return 0, fmt.Errorf("%q is not a size", s)
	}
	return Size(f * float64(mul)), nil
}

// String gives the shortest exact form in binary units.
func (s Size) String() string {
	for _, u := range []unit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s != 0 && int64(s)%u.mul == 0 {
			return strconv.FormatInt(int64(s)/u.mul, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// parseDuration is time.ParseDuration with an error that helps, and with a
// bare 0 as the only number without a unit.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil {
		return d, nil
	}
	mend := "write 90s, 5m or 1h30m"
	if n, numErr := strconv.ParseFloat(s, 64); numErr == nil {
		mend = fmt.Sprintf("a duration needs its unit: %gs, or %gm", n, n)
	} else if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, numErr := strconv.Atoi(days); numErr == nil {
			mend = fmt.Sprintf("write days in hours: %dh", n*24)
		}
	}
	return 0, &badValue{what: fmt.Sprintf("%q is not a duration", s), mend: mend}
}

// badValue carries what is wrong and the mend apart from each other.
type badValue struct{ what, mend string }

func (b *badValue) Error() string { return b.what + "; " + b.mend }

// formatDuration drops the zero parts that time.Duration prints: 5m, not 5m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
