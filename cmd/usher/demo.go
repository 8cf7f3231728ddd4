package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/demo"
)

// newDemoCmd makes "usher demo". start starts the Usher that it shows.
func newDemoCmd(start demo.Starter) *cobra.Command {
	opt := demo.Options{}
	noBrowser := false
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work: a cinema, a crowd, and a waiting room",
		Long: `demo starts a small cinema, puts a waiting room in front of it, and sends a crowd of
real HTTP clients: patient ones, some who leave or sleep, some who reload all the
time, some with two tabs, some who never come in. Open the printed address and wait
in line with them.

Everything runs in this process and in one temporary folder, which is removed at the
end. Ctrl-C ends it.`,
		Example: `  usher demo
  usher demo --visitors 2000 --active 100
  usher demo --speed 4
  usher demo > demo.log          # plain lines`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opt.Check(); err != nil {
				return &usageError{err}
			}
			// However it is ended, it cleans up: Ctrl-C, a closed window, "| head".
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			signal.Ignore(syscall.SIGPIPE)
			go func() {
				<-ctx.Done()
				stop() // a second Ctrl-C ends at once
			}()
			t := demo.Terminal{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), Getenv: os.Getenv}
			if f, ok := t.Out.(*os.File); ok {
				t.Screen = func() (*demo.Screen, bool) { return demo.NewScreen(f, os.Getenv) }
				opt.Browser = !noBrowser && demo.IsTerminal(f)
			}
			return demo.Run(ctx, opt, t, start)
		},
	}
	f := cmd.Flags()
	f.IntVar(&opt.Visitors, "visitors", 300, "how many are here at once; whoever is done is replaced")
	f.IntVar(&opt.Active, "active", 20, "how many the room lets in at once")
	f.Float64Var(&opt.Speed, "speed", 1, "how fast the crowd lives")
	f.StringVar(&opt.Listen, "listen", "127.0.0.1:8080", "where visitors are answered; a taken port gives way to the next free one")
	f.StringVar(&opt.Admin, "admin-listen", "127.0.0.1:8081", "where the operator is answered; a taken port gives way likewise")
	f.BoolVar(&noBrowser, "no-browser", false, "do not open the page on a desktop")
	return cmd
}
