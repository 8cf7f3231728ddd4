package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
)

type keepFlags struct {
	file, admin, worker, level, format string
}

func newKeepCmd() *cobra.Command {
	var f keepFlags
	cmd := &cobra.Command{
		Use:   "keep",
		Short: "Run a worker that holds outbound WebSocket connections",
		Long: `keep runs one worker of the keeper: section of a file, without waiting rooms. Start as
many as you need, with the same file; each connection is held by one of them, and every
message is stored once. SIGTERM or Ctrl-C closes all sockets and gives everything back
within node.drain (30s); a second one ends it at once.

On its admin listener are the service API (/svc/v1/connections), the live view (/keeper),
/metrics and /health/ready.`,
		Example: `  usher keep --config usher.yaml
  usher keep --config usher.yaml --admin-listen 127.0.0.1:0 --worker w2     # a second one on this machine
  usher connections add feed-1 wss://feed.example.com/v1 --cursor seq --resume 'from={cursor}&fence={fence}'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := server.NewLogger(cmd.ErrOrStderr(), f.level, f.format)
			if err != nil {
				return &usageError{err}
			}
			return inLog(log, f.run(cmd.Context(), log))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.file, "config", "", "configuration file with a keeper: section (required)")
	flags.StringVar(&f.admin, "admin-listen", "", "address of the service API, metrics and live view (default admin.listen)")
	flags.StringVar(&f.worker, "worker", "", "name of this worker (default keeper.worker, or host name and a random part)")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "", "text or json (default text in a terminal, else json)")
	return cmd
}

func (f *keepFlags) run(ctx context.Context, log *slog.Logger) error {
	if f.file == "" {
		return &usageError{errors.New("--config is missing: a file with a keeper: section")}
	}
	cfg, err := config.Load(f.file)
	if err != nil {
		return err
	}
	if !cfg.Keeper.On {
		return config.Problems{cfg.ProblemAt("keeper", "is missing", "add keeper: {} for the defaults")}
	}
	if f.admin != "" {
		cfg.Admin.Listen = f.admin
	}
	if f.worker != "" {
		cfg.Keeper.Worker = f.worker
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	node, err := server.StartKeep(ctx, cfg, log)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Wait() }()
	for stopping := false; ; {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			if stopping {
				return fmt.Errorf("%v again: stopped at once; what was not given back goes with the lease", s)
			}
			stopping = true
			node.Stop()
		}
	}
}
