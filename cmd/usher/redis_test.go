package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ushergo/usher/internal/redistest"
)

func TestRedisCheckAndClean(t *testing.T) {
	quiet(t)
	s := redistest.Start(t)
	file := write(t, "usher.yaml", fmt.Sprintf("engine: {kind: redis, addrs: [%q]}\n", s.Addr))
	try := func(want int, words []string, args ...string) {
		t.Helper()
		code, out, errs := usher(append(append([]string{"redis"}, args...), "--config", file)...)
		for _, w := range words {
			if !strings.Contains(out+errs, w) {
				t.Errorf("%v: %q is not in\n%s%s", args, w, out, errs)
			}
		}
		if code != want {
			t.Errorf("%v: %d, want %d\n%s%s", args, code, want, out, errs)
		}
	}
	try(0, []string{"in order, 0 rooms"}, "check")
	s.Must("SADD", "usher:rooms", "ghost")
	s.Must("SET", "usher:rooms-of-old", "x")
	try(1, []string{"lists room ghost", "usher:rooms-of-old", "2 things to mend"}, "check")
	try(0, []string{"would remove: usher:rooms: lists room ghost", "left alone: usher:room", "1 key would be removed, 1 left alone"}, "clean", "--dry-run")
	try(1, []string{"lists room ghost"}, "check")
	try(0, []string{"removed: usher:rooms: lists room ghost", "1 key removed, 1 left alone"}, "clean")
	try(1, []string{"usher:rooms-of-old", "1 thing to mend"}, "check")
	if got := s.Must("GET", "usher:rooms-of-old"); got != "x" {
		t.Errorf("a key that is not usher's is now %q", got)
	}
	memory := write(t, "memory.yaml", "engine: {kind: memory}\n")
	if code, _, errs := usher("redis", "check", "--config", memory); code != 1 || !strings.Contains(errs, "engine.kind is memory") {
		t.Errorf("%d %s", code, errs)
	}
}
