package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/web/page"
)

func newPageCmd() *cobra.Command {
	cmd := group("page", "Work on the waiting page",
		`page helps to make the waiting page your own: texts, colours, logo or the whole
template, in a folder that the room names as page.dir.`,
		"  usher page preview\n  usher page preview ./my-page")
	cmd.AddCommand(newPagePreviewCmd())
	return cmd
}

func newPagePreviewCmd() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "preview [FOLDER]",
		Short: "Show every state of the waiting page in a browser",
		Long: `preview serves every state of the waiting page, in every language, light and dark,
until Ctrl-C. Pages follow the files in the folder as they change; a mistake in them
is shown on the page.`,
		Example: "  usher page preview\n  usher page preview ./my-page --listen 127.0.0.1:8090",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := ""
			if len(args) == 1 {
				dir = args[0]
				if info, err := os.Stat(dir); err != nil || !info.IsDir() {
					return fmt.Errorf("%s is not a folder; name the folder with your page", dir)
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return preview(ctx, cmd, dir, listen)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8090", "address of the preview; port 0 takes a free one")
	return cmd
}

func preview(ctx context.Context, cmd *cobra.Command, dir, listen string) error {
	l, err := net.Listen("tcp", listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is taken by another program; choose another address with --listen, as 127.0.0.1:0 for a free one", listen)
	}
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", listen, err)
	}
	srv := &http.Server{Handler: page.Preview(dir), ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintf(cmd.OutOrStdout(), "http://%s/ shows the waiting page in every state; Ctrl-C ends it\n", l.Addr())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		_ = srv.Close() // a preview has nobody to wait for
		return nil
	}
}
