package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/internal/loadtest"
)

// benchFlags are those that are not fields of loadtest.Config.
type benchFlags struct {
	admin      adminFlags
	token      string
	renew      bool
	quiet      bool
	json, html string
	schema     bool
}

func newBenchCmd() *cobra.Command {
	var f benchFlags
	cfg := loadtest.Config{Visitors: 10_000, Ramp: 10 * time.Second, Stay: 20 * time.Second, Abandon: 0.05, Refresh: 0.02}
	cmd := &cobra.Command{
		Use:   "bench [URL]",
		Short: "Put a crowd of visitors in front of a room, and judge it",
		Long: `bench sends visitors over HTTP to a room of a running usher (default
what --config listens on, or http://127.0.0.1:8080). They enter, wait, are let in, stay, and leave; some vanish
while they wait. Then it reports how long they waited for answers, and counts what
must never happen: somebody overtaken, admitted twice, admitted beyond the limit, or
lost. Each count must be 0; else the exit status is 1.

With an admin token the counts come from the room's own log, at every position of it,
and the report shows the server's CPU, memory and engine. The token is found as by the
other commands. Without one, clients alone judge, and the limit cannot be judged.

Ctrl-C ends the load and reports what ran so far; those still there are taken out of
the room again.`,
		Example: `  usher bench --visitors 10000 --ramp 10s --stay 20s --abandon 5%
  usher bench --room premiere --steps 100,1000,10000 --html report.html
  usher bench https://tickets.example --room premiere --transport sse
  usher bench --visitors 1000 --proxy /seats --json - | jq .steps[0].faults`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return &usageError{fmt.Errorf("%s takes one URL, and got %q too", cmd.CommandPath(), args[1])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.schema {
				_, err := io.WriteString(cmd.OutOrStdout(), loadtest.JSONSchema)
				return err
			}
			cfg.URL = "http://127.0.0.1:8080"
			if f.admin.config != "" {
				c, err := config.Load(f.admin.config)
				if err != nil {
					return err
				}
				cfg.URL = listenerURL(c.Public.Listen, c.Public.TLS.On())
			}
			if len(args) > 0 {
				cfg.URL = args[0]
				if !strings.Contains(cfg.URL, "://") {
					cfg.URL = "http://" + cfg.URL
				}
			}
			if f.renew && cfg.Proxy != "" {
				return &usageError{fmt.Errorf("--renew and --proxy exclude each other: visitors use their admission in one way")}
			}
			return bench(cmd, &f, cfg)
		},
	}
	flags := cmd.Flags()
	f.admin.register(cmd)
	flags.StringVar(&f.token, "admin-token", "", "the admin token itself; others on this machine can see it, so prefer USHER_ADMIN_TOKEN or --token-file")
	flags.StringVar(&cfg.Room, "room", "", "id of the room (default: the only one there is, or main)")
	flags.IntVar(&cfg.Visitors, "visitors", cfg.Visitors, "how many come")
	flags.IntSliceVar(&cfg.Steps, "steps", nil, "several sizes one after another, as 100,1000,10000; a table compares them")
	flags.DurationVar(&cfg.Ramp, "ramp", cfg.Ramp, "time over which they come")
	flags.DurationVar(&cfg.Stay, "stay", cfg.Stay, "time inside, on average")
	flags.Var(share{&cfg.Abandon}, "abandon", "share that vanishes while waiting, without a word")
	flags.Var(share{&cfg.Refresh}, "refresh", "share that enters once more while waiting, as a reload does")
	flags.StringVar(&cfg.Transport, "transport", "poll", "how those who wait learn that it is their turn: poll, sse or ws")
	flags.DurationVar(&cfg.Poll, "poll", 0, "ask for the status this often (default: as the server says)")
	flags.BoolVar(&f.renew, "renew", false, "use admissions by renewing them through the API (this is the default)")
	flags.StringVar(&cfg.Proxy, "proxy", "", "use admissions by asking for the page of this path, through usher's proxy")
	flags.DurationVar(&cfg.Think, "think", 5*time.Second, "time between two pages, with --proxy")
	flags.IntVar(&cfg.Connections, "connections", 0, "connections that all visitors share (default: one each, at most 4000)")
	flags.DurationVar(&cfg.Timeout, "timeout", 30*time.Second, "of one exchange")
	flags.DurationVar(&cfg.Patience, "patience", time.Minute, "how long a visitor repeats what meets errors")
	flags.StringVar(&cfg.Host, "host", "", "Host header, for a room that matches by host")
	flags.BoolVar(&cfg.Insecure, "insecure", false, "do not verify the certificate of an https URL")
	flags.BoolVar(&cfg.Forwarded, "forwarded", false, "give each visitor an address by X-Forwarded-For; the server must have us in trusted_proxies")
	flags.Uint64Var(&cfg.Seed, "seed", 0, "of everything that is drawn (default: another one each time)")
	flags.StringVar(&f.json, "json", "", "write the report as JSON to this file; - is standard output")
	flags.StringVar(&f.html, "html", "", "write the report as one HTML page to this file")
	flags.BoolVar(&f.quiet, "quiet", false, "show no progress")
	flags.BoolVar(&f.schema, "json-schema", false, "print the JSON Schema of --json and end")
	return cmd
}

func bench(cmd *cobra.Command, f *benchFlags, cfg loadtest.Config) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	if err := f.meetAdmin(ctx, &cfg); err != nil {
		return err
	}
	page, err := newOutput(f.html)
	if err != nil {
		return err
	}
	defer page.drop()
	data, err := newOutput(f.json)
	if err != nil {
		return err
	}
	defer data.drop()
	text := cmd.OutOrStdout()
	if f.json == "-" {
		text = cmd.ErrOrStderr()
	}
	view := newBenchView(cmd.ErrOrStderr(), cfg.Room, cfg.URL)
	if !f.quiet {
		cfg.Progress = view.show
	}
	report, err := loadtest.Run(ctx, cfg)
	view.end()
	if err != nil {
		return err
	}
	if err := report.WriteText(text); err != nil {
		return err
	}
	if err := page.write(cmd.OutOrStdout(), report.WriteHTML); err != nil {
		return err
	}
	if err := data.write(cmd.OutOrStdout(), report.WriteJSON); err != nil {
		return err
	}
	for _, path := range []string{f.html, f.json} {
		if path != "" && path != "-" {
			fmt.Fprintf(text, "Written: %s\n", path)
		}
	}
	if !report.OK {
		return &exitError{1}
	}
	return nil
}

// meetAdmin finds the admin listener, its token, and the room if none was named.
func (f *benchFlags) meetAdmin(ctx context.Context, cfg *loadtest.Config) error {
	base, secret, from, err := f.admin.find()
	if err != nil {
		return err
	}
	client, err := adminapi.New(base, secret, from)
	if err != nil {
		return err
	}
	cfg.Admin, cfg.AdminToken = client.Base(), secret.Reveal()
	if f.token != "" {
		cfg.AdminToken = f.token
	}
	if cfg.Room != "" {
		return nil
	}
	cfg.Room = "main"
	if secret.Empty() {
		return nil
	}
	rooms, err := client.Rooms(ctx)
	if err != nil || len(rooms) == 0 {
		return err
	}
	var names []string
	for _, r := range rooms {
		names = append(names, r.Config.ID)
	}
	if len(names) > 1 {
		return &usageError{fmt.Errorf("there are several rooms; say which by --room: %s", strings.Join(names, ", "))}
	}
	cfg.Room = names[0]
	return nil
}

// share is a flag that reads 5% and 0.05.
type share struct{ v *float64 }

func (s share) String() string {
	if s.v == nil {
		return ""
	}
	return strconv.FormatFloat(*s.v*100, 'g', 4, 64) + "%"
}
func (s share) Type() string { return "share" }
func (s share) Set(text string) error {
	number, isPercent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if isPercent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return fmt.Errorf("%q is not a share; write it as 5%% or 0.05", text)
	}
	*s.v = v
	return nil
}

// output is a file that takes its name only when it is whole, so that a run that fails leaves an older report alone.
type output struct {
	path string
	file *os.File
}

// newOutput makes sure, before minutes of load, that the file can be written.
func newOutput(path string) (*output, error) {
	o := &output{path: path}
	if path == "" || path == "-" {
		return o, nil
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".usher-bench-*")
	if err != nil {
		return nil, fmt.Errorf("cannot write %s: %w", path, err)
	}
	o.file = file
	return o, nil
}

func (o *output) write(stdout io.Writer, form func(io.Writer) error) error {
	if o.path == "-" {
		return form(stdout)
	}
	if o.file == nil {
		return nil
	}
	err := form(o.file)
	if err == nil {
		err = o.file.Chmod(0o644)
	}
	if e := o.file.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(o.file.Name(), o.path)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", o.path, err)
	}
	o.file = nil
	return nil
}

// drop removes what was not written to the end.
func (o *output) drop() {
	if o.file != nil {
		o.file.Close()
		os.Remove(o.file.Name())
	}
}
