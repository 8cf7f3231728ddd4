//go:build unix

package server

import (
	"log/slog"
	"syscall"
)

// enoughFiles is what a node with a crowd in front needs: a descriptor for each
// connection, two where it proxies.
const enoughFiles = 65536

// raiseFileLimit takes all the descriptors that the system allows the process.
func raiseFileLimit(log *slog.Logger) {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		log.Warn("cannot read the limit on open files", "err", err)
		return
	}
	if lim.Cur < lim.Max {
		raised := syscall.Rlimit{Cur: lim.Max, Max: lim.Max}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised); err == nil {
			lim = raised
		}
	}
	if lim.Cur < enoughFiles {
		log.Warn("few open files are allowed: every connection takes one, or two with an origin behind; raise it with ulimit -n or LimitNOFILE=",
			"limit", lim.Cur, "enough", enoughFiles)
	}
}
