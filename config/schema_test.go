package config_test

import (
	"os/exec"
	"testing"
)

// The schema and the table of keys say what the structs say.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	out, err := exec.Command("go", "run", "./internal/genschema", "-check").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
