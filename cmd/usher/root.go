package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "usher",
		Short: "A waiting room in front of your site",
		Long: `usher lets as many visitors into a site as it can bear. The others wait in line,
see their place fall, and are let in as others leave.`,
		Example: `  usher demo                                                  # see it: a cinema, a crowd, a waiting room
  usher serve --origin http://127.0.0.1:9000 --active 600     # put it in front of a site
  usher serve --config usher.yaml                             # several rooms, TLS, schedules, ...
  usher validate usher.yaml                                   # what is wrong with a file, all of it
  usher rooms list                                            # what is going on in the running one
  usher rooms pause main --message "Back in five minutes"
  usher bench --visitors 10000                                # does it hold?`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "operate", Title: "Operate a running usher:"},
		&cobra.Group{ID: "prepare", Title: "Prepare:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("run", newServeCmd(), newKeepCmd(), newRelayCmd(), newSidecarCmd(), newDemoCmd(startDemoServer))
	add("operate", newRoomsCmd(), newConnectionsCmd(), newRelaysCmd(), newDLQCmd(), newKeysCmd())
	add("prepare", newValidateCmd(), newPageCmd(), newDynamoDBCmd(), newRedisCmd(), newBenchCmd())
	root.AddCommand(newVersionCmd())
	return root
}

// noArgs refuses words that no command takes, and names the nearest command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q", strings.TrimSpace(cmd.CommandPath()+" "+args[0]))
	if !cmd.HasSubCommands() {
		text = fmt.Sprintf("%s takes no arguments, and got %q", cmd.CommandPath(), args[0])
	} else if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += fmt.Sprintf("; did you mean %q?", near[0])
	}
	return &usageError{fmt.Errorf("%s", text)}
}

// wantArgs takes exactly the named arguments.
func wantArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return &usageError{fmt.Errorf("%s needs %s", cmd.CommandPath(), names[len(args)])}
		}
		if len(args) > len(names) {
			return &usageError{fmt.Errorf("%s does not know what to do with %q", cmd.CommandPath(), args[len(names)])}
		}
		return nil
	}
}

// group is a command that only holds others.
func group(use, short, long, example string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}
