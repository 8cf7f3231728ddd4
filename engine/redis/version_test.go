package redis

import (
	"strings"
	"testing"
)

func TestOlderServersAreRefused(t *testing.T) {
	c := Config{Addrs: []string{"h:6379"}}
	for version, want := range map[string]string{
		"6.0.16": "engine.addrs: h:6379 is Redis 6.0.16; usher needs 7 or later", "6.2.14": "needs 7 or later",
		"7.0.15": "", "7.2.4": "", "8.0.1": "",
	} {
		err := c.fits(map[string]string{"redis_version": version, "redis_mode": "standalone", "role": "master"})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", version, err)
		}
	}
}
