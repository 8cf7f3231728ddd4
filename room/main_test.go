package room

import (
	"flag"
	"os"
	"testing"
)

// Random tests run a little longer than rapid's default, unless the command line says otherwise:
// with 100 runs of 30 steps, one deliberate fault in three went unnoticed.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "250", "rapid.steps": "70"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
