package transcribe

import "syscall"

// dieWithParent: no worker outlives the script.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
