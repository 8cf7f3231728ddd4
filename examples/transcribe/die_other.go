//go:build !linux

package transcribe

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
