package token

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// The methods below keep keys out of logs whatever prints them: fmt with any verb, slog, JSON.

func (k *Keys) String() string               { return redacted }
func (k *Keys) GoString() string             { return redacted }
func (k *Keys) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (k *Keys) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
func (k *Keys) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (k *Keys) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, redacted) }

// set and stored are marshalled to JSON on purpose when keys are saved, so only printing is closed to them.

func (s *set) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, redacted) }
func (s *set) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (s stored) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }
func (s stored) LogValue() slog.Value       { return slog.StringValue(redacted) }

func (m *macKey) Format(f fmt.State, _ rune)  { _, _ = io.WriteString(f, redacted) }
func (m *macKey) LogValue() slog.Value        { return slog.StringValue(redacted) }
func (s *signKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }
func (s *signKey) LogValue() slog.Value       { return slog.StringValue(redacted) }
