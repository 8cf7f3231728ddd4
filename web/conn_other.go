//go:build !linux

package web

import (
	"net"
	"time"
)

func setUserTimeout(*net.TCPConn, time.Duration) {}
