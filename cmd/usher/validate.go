package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/config"
)

func newValidateCmd() *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use:   "validate FILE|-",
		Short: "Say everything that is wrong with a configuration file",
		Long: `validate reads a configuration file and prints every error with its line, what is
wrong and what to write instead, and warnings about what is allowed but dangerous.
It exits with 0 when usher could start with the file, and with 1 otherwise.
- stands for the standard input.`,
		Example: `  usher validate usher.yaml
  envsubst < usher.yaml.in | usher validate -
  usher validate --schema > usher.schema.json   # for your editor`,
		Args: func(cmd *cobra.Command, args []string) error {
			if schema {
				return noArgs(cmd, args)
			}
			return wantArgs("the path of a configuration file")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if schema {
				_, err := cmd.OutOrStdout().Write(config.Schema())
				return err
			}
			name := args[0]
			var c *config.Config
			var err error
			if name == "-" {
				name = "stdin"
				c, err = config.Read(name, cmd.InOrStdin())
			} else {
				c, err = config.Load(name)
			}
			if err == nil {
				err = checkPages(c)
			}
			if err != nil && config.ProblemsOf(err) == nil {
				return err
			}
			if problems := config.ProblemsOf(err); problems != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), problems)
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", name, count(len(problems), "error"))
				return &exitError{1}
			}
			warnings := c.Warnings()
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w.Error())
			}
			text := fmt.Sprintf("%s: good, %s", name, count(len(c.Rooms), "room"))
			if len(warnings) > 0 {
				text += ", " + count(len(warnings), "warning")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the file")
	return cmd
}

// count gives "1 room", "2 rooms".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
