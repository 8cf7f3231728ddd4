//go:build !unix

package loadtest

// openFiles is not limited by the process where there is no RLIMIT_NOFILE.
func openFiles() int { return 1 << 30 }

// cpuSeconds is not measured here.
func cpuSeconds() float64 { return 0 }
