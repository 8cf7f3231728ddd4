package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/web/page"
)

// serveFlags are what can be said without a file.
type serveFlags struct {
	file, level, format, otlp string
	quick                     config.QuickOptions
}

func newServeCmd() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the waiting room",
		Long: `serve runs usher until SIGTERM or Ctrl-C, and then stops gracefully within
node.drain (30s); a second one stops at once. SIGHUP reads the file again and applies
what changed in rooms and certificates without dropping anybody.

With --origin and --active and no file, one room stands in front of every path of every
host. For everything else write a file: usher validate --schema describes it.

Several ushers on one Redis are one waiting room: engine: {kind: redis} in the file.

Both listeners are on loopback unless told otherwise. Secrets come from the environment:
USHER_ADMIN_TOKEN, USHER_KEYS, USHER_REDIS_PASSWORD. Without an admin token, one is made
and kept in the data folder.`,
		Example: `  usher serve --origin http://127.0.0.1:9000 --active 600
  usher serve --origin http://127.0.0.1:9000 --active 600 --rate 1200 --listen 0.0.0.0:8080
  usher serve --config usher.yaml
  kill -HUP $(pidof usher)                # read the file again`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := server.NewLogger(cmd.ErrOrStderr(), f.level, f.format)
			if err != nil {
				return &usageError{err}
			}
			cfg, err := f.config(cmd)
			if err == nil {
				err = serve(cmd.Context(), cfg, log, f)
			}
			return inLog(log, err)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.file, "config", "", "configuration file; instead of the flags about the room")
	flags.StringVar(&f.quick.Origin, "origin", "", "the site behind the room, as http://127.0.0.1:9000")
	flags.IntVar(&f.quick.Active, "active", 0, "most visitors inside at one moment")
	flags.IntVar(&f.quick.Rate, "rate", 0, "most admissions in any 60 seconds; 0: no such limit")
	flags.StringVar(&f.quick.Room, "room", "main", "name of the room")
	flags.StringVar(&f.quick.Listen, "listen", "", "address for visitors (default 127.0.0.1:8080)")
	flags.StringVar(&f.quick.Admin, "admin-listen", "", "address for the operator (default 127.0.0.1:8081)")
	flags.StringVar(&f.quick.URL, "url", "", "address as visitors see it, if a proxy stands in front")
	flags.StringVar(&f.quick.Dir, "data", "", "data folder (default ./usher-data)")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "", "text or json (default text in a terminal, else json)")
	flags.StringVar(&f.otlp, "otlp", "", "send traces to this OTLP/HTTP address (default OTEL_EXPORTER_OTLP_ENDPOINT; none: no traces)")
	return cmd
}

// inLog writes what ends the program as one more line of a JSON log, so that
// whoever collects it can read that one too. A person gets plain words.
func inLog(log *slog.Logger, err error) error {
	var usage *usageError
	var silent *exitError
	if _, ok := log.Handler().(*slog.JSONHandler); !ok || err == nil || errors.As(err, &usage) || errors.As(err, &silent) {
		return err
	}
	if config.ProblemsOf(err) != nil {
		logProblems(log, err)
		log.Error("usher cannot start with this configuration")
	} else {
		log.Error("usher has ended", "err", err)
	}
	return &exitError{1}
}

func logProblems(log *slog.Logger, err error) {
	for _, p := range config.ProblemsOf(err) {
		attrs := []any{"what", p.What, "mend", p.Mend}
		if p.Path != "" { // else it is about the file as a whole
			attrs = append([]any{"key", p.Path}, attrs...)
		}
		if p.File == "" {
			log.Error("a flag or a variable is wrong", attrs...)
		} else {
			log.Error("the file is wrong", append([]any{"at", p.At()}, attrs...)...)
		}
	}
}

// config is the file's, or the quick one that the flags make. Addresses and
// data folder may be given beside a file and win over it, for a second usher on
// one machine; the room may not.
func (f *serveFlags) config(cmd *cobra.Command) (*config.Config, error) {
	if f.file != "" {
		for _, name := range []string{"origin", "active", "rate", "room"} {
			if cmd.Flags().Changed(name) {
				return nil, &usageError{fmt.Errorf("--%s and --config together: say it in the file, under rooms", name)}
			}
		}
		return f.load()
	}
	if f.quick.Origin == "" && f.quick.Active == 0 {
		return nil, &usageError{errors.New("what should usher stand in front of? Give --origin and --active, or --config with a file")}
	}
	if f.quick.Origin == "" {
		return nil, &usageError{errors.New("--origin is missing: the address of the site behind the room, as http://127.0.0.1:9000")}
	}
	if f.quick.Active < 1 {
		return nil, &usageError{errors.New("--active is missing: the most visitors that may be inside at one moment, as 600")}
	}
	cfg := config.Quick(f.quick, os.Getenv)
	return cfg, asFlags(cfg.Validate())
}

// checkPages reads every room's page folder as the server will, so that a
// mistake in it is told with the others, before anything starts or changes.
func checkPages(cfg *config.Config) error {
	var problems config.Problems
	for i, r := range cfg.Rooms {
		if r.Page.Dir == "" {
			continue
		}
		if _, err := page.New(r.Page.Dir); err != nil {
			path := fmt.Sprintf("rooms[%d].page.dir", i)
			for n, fault := range page.Faults(err) {
				mend := ""
				if n == 0 {
					mend = "usher page preview " + r.Page.Dir + " shows the page as you mend it"
				}
				problems = append(problems, cfg.ProblemAt(path, fault.Error(), mend))
			}
		}
	}
	if problems == nil {
		return nil
	}
	return problems
}

// load reads the file, and lets the flags that may stand beside it win.
func (f *serveFlags) load() (*config.Config, error) {
	cfg, err := config.Load(f.file)
	if err != nil {
		return nil, err
	}
	for _, o := range []struct {
		to   *string
		flag string
	}{{&cfg.Public.Listen, f.quick.Listen}, {&cfg.Admin.Listen, f.quick.Admin}, {&cfg.Public.URL, f.quick.URL}, {&cfg.Engine.Dir, f.quick.Dir}} {
		if o.flag != "" {
			*o.to = o.flag
		}
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return cfg, checkPages(cfg)
}

// gcPercent lets the heap grow to four times what lives before it is collected. What lives is small (a hundred bytes a
// waiter), what requests leave behind is not, so collecting rarely saves a tenth of the CPU for tens of megabytes. See
// docs/decisions/0006; GOGC overrules it.
const gcPercent = 300

func serve(ctx context.Context, cfg *config.Config, log *slog.Logger, f serveFlags) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	spans, err := server.OTLP(ctx, f.otlp)
	if err != nil {
		return err
	}
	s, err := server.Start(ctx, cfg, log, server.Version(buildVersion().Version), server.Spans(spans))
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	stopping := false
	stop := func() {
		stopping = true
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), cfg.Node.Drain)
			defer cancel()
			_ = s.Shutdown(ctx) // Wait hands on the error
		}()
	}
	reloads := make(chan struct{}, 1) // one that waits will read the file as it is then
	defer close(reloads)
	go func() { // beside what follows, so that a file or an engine that hangs stops nobody from stopping
		for range reloads {
			reload(ctx, s, f, log)
		}
	}()
	quit := ctx.Done()
	for {
		select {
		case err := <-ended:
			return err
		case <-quit:
			quit = nil
			if !stopping {
				stop()
			}
		case sig := <-signals:
			switch {
			case sig == syscall.SIGHUP:
				if !stopping {
					select {
					case reloads <- struct{}{}:
					default:
					}
				}
			case stopping:
				log.Warn("stopping at once: a second signal came", "signal", sig.String())
				return &exitError{1}
			default:
				stop()
			}
		}
	}
}

// reload reads the file again; with an error in it, everything stays as it is.
func reload(ctx context.Context, s *server.Server, f serveFlags, log *slog.Logger) {
	if f.file == "" {
		log.Warn("SIGHUP: there is no file to read again; usher was started with flags alone")
		return
	}
	cfg, err := f.load()
	if err != nil {
		if config.ProblemsOf(err) != nil {
			logProblems(log, err)
		} else {
			log.Error("the file cannot be read", "err", err)
		}
		log.Error("the file is refused as a whole; the running configuration stays", "file", f.file)
		return
	}
	for _, w := range cfg.Warnings() {
		log.Warn(w.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := s.Reload(ctx, cfg); err != nil {
		log.Error("not all of the file could be applied", "file", f.file, "err", err)
		return
	}
	log.Info("the file has been applied", "file", f.file, "rooms", len(cfg.Rooms))
}
