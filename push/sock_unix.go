//go:build unix && !linux

package push

import "time"

func userTimeout(int, time.Duration) {}
