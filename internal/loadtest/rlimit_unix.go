//go:build unix

package loadtest

import "syscall"

// openFiles raises the number of files this process may open to the hard limit, as far as that goes, and returns it.
func openFiles() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	if l.Cur < l.Max {
		up := l
		up.Cur = l.Max
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &up) == nil {
			l = up
		}
	}
	return int(min(uint64(l.Cur), 1<<30))
}

// cpuSeconds is the processor time this process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}
