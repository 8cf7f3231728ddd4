package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/token"
)

// The keys that nodes share in Redis are listed and rotated by the file that names it.
func TestKeysInRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Redis; make test runs it")
	}
	s := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "usher.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "engine: {kind: redis, addrs: ['%s']}\nrooms: [{id: main, capacity: {active: 1}}]\n", s.Addr), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		root := newRootCmd()
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append([]string{"keys", "--config", file}, args...))
		err := root.Execute()
		return out.String(), err
	}
	if _, err := run("list"); err == nil || !strings.Contains(err.Error(), "there are no keys in Redis, key usher:{keys}") {
		t.Errorf("%v", err)
	}
	client, err := redis.Connect(t.Context(), redis.Config{Addrs: []string{s.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	keys, err := token.OpenStore(t.Context(), redis.NewKeyStore(client))
	if err != nil {
		t.Fatal(err)
	}
	before := len(keys.List())
	if out, err := run("list"); err != nil || strings.Count(out, "current") != 3 {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run("rotate"); err != nil || !strings.Contains(out, "published now") {
		t.Errorf("%v %s", err, out)
	}
	if err := keys.Reload(); err != nil || len(keys.List()) != before+2 {
		t.Errorf("%v: %d keys, %d before", err, len(keys.List()), before)
	}
}
