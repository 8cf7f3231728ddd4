package server

import (
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
)

// NewLogger makes the process's logger: text for a person at a terminal, JSON
// for everything else. level is debug, info, warn or error; format is text,
// json, or "" to choose by w.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q; choose debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch {
	case format == "text" || format == "" && isTerminal(w):
		opts.ReplaceAttr = shortTime
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case format == "json" || format == "":
		opts.ReplaceAttr = durations
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log format %q; choose text or json", format)
}

// shortTime leaves a person the time of day and drops the level of the usual.
func shortTime(groups []string, a slog.Attr) slog.Attr {
	a = durations(groups, a)
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.String(a.Key, a.Value.Time().Format("15:04:05.000"))
	case slog.LevelKey:
		return slog.String(a.Key, strings.ToLower(a.Value.String()))
	}
	return a
}

// durations are written for people, as 2m3.5s; JSON would give bare nanoseconds.
func durations(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	d := a.Value.Duration()
	switch {
	case d >= time.Minute || d <= -time.Minute:
		d = d.Round(100 * time.Millisecond)
	case d >= time.Second || d <= -time.Second:
		d = d.Round(time.Millisecond)
	}
	return slog.String(a.Key, d.String())
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// httpLog takes what net/http has to say: panics of handlers are errors, the
// rest (broken handshakes, clients that went away) concerns nobody by default.
func httpLog(log *slog.Logger) *stdlog.Logger { return stdlog.New(httpLines{log}, "", 0) }

type httpLines struct{ log *slog.Logger }

func (h httpLines) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if head, stack, ok := strings.Cut(text, "\n"); ok && strings.Contains(head, "panic serving") {
		h.log.Error(head, "stack", stack)
	} else {
		h.log.Debug(text)
	}
	return len(line), nil
}
