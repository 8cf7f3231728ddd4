// Command usher is self-hosted admission control: a waiting room in front of a
// site, and the tools around it. usher --help shows the way.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit code. 0 is success, 1 a
// failure, 2 a command line that cannot be understood.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCmd()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	var silent *exitError
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &silent):
		return silent.code
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "usher: %v\nsee %s --help\n", err, cmd.CommandPath())
		return 2
	}
	fmt.Fprintf(stderr, "usher: %v\n", err)
	return 1
}

// exitError ends with a code after the command has said everything itself.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
