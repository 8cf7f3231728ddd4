// Command testcount runs go test and counts. Its arguments are those of go
// test; it prints a line for each package, everything that failed tests said,
// why tests were skipped, and, alone on the last line, how many passed, failed
// and were skipped. It exits with 1 if anything failed, did not build, or if
// not one test ran.
package main

import (
	"fmt"
	"os"
	"os/exec"
)

func main() {
	cmd := exec.Command("go", append([]string{"test", "-json"}, os.Args[1:]...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		os.Exit(1)
	}
	t := newTally(os.Stdout)
	readErr := t.read(out)
	runErr := cmd.Wait()
	t.summary()
	if readErr != nil {
		fmt.Fprintln(os.Stderr, "testcount: reading what go test says:", readErr)
	}
	if runErr != nil || readErr != nil || t.failed > 0 || t.passed == 0 {
		os.Exit(1)
	}
}
