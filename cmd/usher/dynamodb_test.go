package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/ushergo/usher/internal/faultproxy"
)

func TestDynamoDBCreate(t *testing.T) {
	if testing.Short() {
		t.Skip("starts dynalite")
	}
	emu, err := faultproxy.Start("dynalite")
	if errors.Is(err, faultproxy.ErrMissing) && os.Getenv("USHER_TEST_ALL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = emu.Close() })
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	create := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := newRootCmd()
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"dynamodb", "create", "--endpoint", emu.URL, "--region", "eu-west-1"}, args...))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	for i, want := range []string{"made mine\nmade mine-workers\n", "mine and mine-workers are there already\n"} {
		if out, err := create("--table", "mine"); err != nil || out != want {
			t.Errorf("call %d: %q %v", i, out, err)
		}
	}
	if _, err := create("--table", "mine-workers"); err == nil || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("a table of another make: %v", err)
	}
}
