// Command testcount runs go test and counts. It prints a line for each package,
// everything that failed tests said, why tests were skipped, and, alone on the
// last line, how many passed, failed and were skipped. It exits with 1 if
// anything failed, did not build, or if not one test ran.
//
//	testcount -race ./...              # in this folder
//	testcount . bench -- -race ./...   # in each of these, counted together
//
// Everything after the folders is go test's.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
)

func main() {
	folders, args := []string{"."}, os.Args[1:]
	if i := slices.Index(args, "--"); i >= 0 {
		folders, args = args[:i], args[i+1:]
	}
	t, ok := newTally(os.Stdout), true
	for _, dir := range folders {
		if err := runTests(t, dir, args); err != nil {
			fmt.Fprintf(os.Stderr, "testcount: %s: %v\n", dir, err)
			ok = false
		}
	}
	t.summary()
	if !ok || t.failed > 0 || t.passed == 0 {
		os.Exit(1)
	}
}

// runTests feeds t with the tests of one folder.
func runTests(t *tally, dir string, args []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := t.read(out)
	if err := cmd.Wait(); err != nil {
		return err
	}
	return readErr
}
