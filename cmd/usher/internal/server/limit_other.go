//go:build !unix

package server

import "log/slog"

func raiseFileLimit(*slog.Logger) {}
