package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
	"github.com/ushergo/usher/cmd/usher/internal/relays"
	"github.com/ushergo/usher/relay"
)

func newDLQCmd() *cobra.Command {
	var df dlqFlags
	cmd := group("dlq", "Look at the dead letters of relays, and bring them back",
		`dlq talks to the admin API of a running usher, or, with --state, looks into the state of
an usher relay itself (a folder only while that does not run). A dead letter is an event
that a relay's sink did not take. It is kept for 14 days (dead_letters.retain).`,
		`  usher dlq list bookings
  usher dlq show bookings premiere/1.42
  usher dlq redrive bookings                       # all of them, 50 a second
  usher dlq redrive bookings premiere/1.42
  usher dlq export bookings > letters.jsonl
  usher dlq drop bookings premiere/1.42`)
	df.register(cmd)
	cmd.PersistentFlags().StringVar(&df.state, "state", "", "folder, redis:// or dynamodb:// address that an usher relay keeps its state in, instead of an admin API")
	cmd.AddCommand(newDLQListCmd(&df), newDLQShowCmd(&df), newDLQRedriveCmd(&df.adminFlags), newDLQDropCmd(&df), newDLQExportCmd(&df))
	return cmd
}

type dlqFlags struct {
	adminFlags
	state string
}

// letters are what dead letters can be looked at by.
type letters interface {
	List(ctx context.Context, relay string, after uint64, limit int) ([]relay.Letter, error)
	Get(ctx context.Context, relay, event string) (relay.Letter, error)
	Drop(ctx context.Context, relay string, events ...string) (int, error)
}

// open reaches the letters that the flags mean.
func (f *dlqFlags) open() (l letters, closer func(), err error) {
	if f.state != "" {
		if _, err := os.Stat(f.state); err != nil && !strings.Contains(f.state, "://") {
			return nil, nil, fmt.Errorf("--state: %w; name the folder that usher relay was given", err)
		}
		var opts relays.Options
		closer, err := openState(f.state, &opts, slog.New(slog.DiscardHandler))
		return opts.Dead, closer, err
	}
	c, err := f.client()
	return remoteLetters{c}, func() {}, err
}

// remoteLetters are those of a running usher.
type remoteLetters struct{ c *adminapi.Client }

func (r remoteLetters) List(ctx context.Context, id string, after uint64, limit int) ([]relay.Letter, error) {
	var page struct {
		Letters []relay.Letter `json:"letters"`
	}
	_, err := r.c.Do(ctx, http.MethodGet, fmt.Sprintf("%s?limit=%d&after=%d", relayPath(id, "/dlq"), limit, after), nil, nil, &page)
	return page.Letters, err
}

func (r remoteLetters) Get(ctx context.Context, id, event string) (l relay.Letter, err error) {
	_, err = r.c.Do(ctx, http.MethodGet, relayPath(id, "/dlq/letter")+"?event="+url.QueryEscape(event), nil, nil, &l)
	return l, err
}

func (r remoteLetters) Drop(ctx context.Context, id string, events ...string) (int, error) {
	var out struct{ Dropped int }
	_, err := r.c.Do(ctx, http.MethodPost, relayPath(id, "/dlq/drop"), nil, map[string]any{"ids": events}, &out)
	return out.Dropped, err
}

// eachLetter calls f for every dead letter of a relay, the oldest first.
func eachLetter(ctx context.Context, from letters, id string, f func(relay.Letter) error) error {
	for after := uint64(0); ; {
		page, err := from.List(ctx, id, after, 500)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, l := range page {
			if err := f(l); err != nil {
				return err
			}
			after = l.Seq
		}
	}
}

func relayPath(id, rest string) string { return "/admin/v1/relays/" + url.PathEscape(id) + rest }

// atLeast takes the named arguments and any number of others.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return &usageError{fmt.Errorf("%s needs %s", cmd.CommandPath(), names[len(args)])}
		}
		return nil
	}
}

func newDLQListCmd(df *dlqFlags) *cobra.Command {
	var asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use: "list RELAY", Aliases: []string{"ls"}, Short: "List dead letters, the oldest first",
		Example: "  usher dlq list bookings\n  usher dlq list bookings --json | jq '.[].reason'",
		Args:    wantArgs("the id of a relay"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, closer, err := df.open()
			if err != nil {
				return err
			}
			defer closer()
			errEnough := errors.New("enough")
			letters := []relay.Letter{}
			err = eachLetter(cmd.Context(), c, args[0], func(l relay.Letter) error {
				if len(letters) == limit {
					return errEnough
				}
				letters = append(letters, l)
				return nil
			})
			if err != nil && !errors.Is(err, errEnough) {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), letters)
			}
			return letterTable(cmd.OutOrStdout(), letters, err != nil)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&limit, "limit", 100, "most letters")
	return cmd
}

func letterTable(w io.Writer, letters []relay.Letter, more bool) error {
	if len(letters) == 0 {
		_, err := fmt.Fprintln(w, "There are no dead letters.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "EVENT\tTYPE\tKEY\tFIRST\tLAST\tATTEMPTS\tCLASS\tREASON")
	for _, l := range letters {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", oneLine(l.Event.ID, 60), oneLine(l.Event.Type, 20), oneLine(l.Event.Key, 30),
			l.First.Format(time.RFC3339), l.Last.Format(time.RFC3339), l.Attempts, l.Class, oneLine(l.Reason, 60))
	}
	if more {
		fmt.Fprintln(tw, "… and more: --limit")
	}
	return tw.Flush()
}

func newDLQShowCmd(df *dlqFlags) *cobra.Command {
	return &cobra.Command{
		Use: "show RELAY EVENT", Short: "Show one dead letter with its payload",
		Example: "  usher dlq show bookings premiere/1.42",
		Args:    wantArgs("the id of a relay", "the id of an event"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, closer, err := df.open()
			if err != nil {
				return err
			}
			defer closer()
			letter, err := c.Get(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), letter)
		},
	}
}

func newDLQRedriveCmd(af *adminFlags) *cobra.Command {
	var rate float64
	cmd := &cobra.Command{
		Use: "redrive RELAY [EVENT…]", Short: "Send dead letters to the sink again, marked late",
		Long: `redrive sends what is named, or all that there is when it begins, to the sink again, no
faster than --rate. What the sink takes is forgotten; what it does not, stays with the
new reason. Cut off or run twice, it sends some twice with the same event id, and loses none.`,
		Example: "  usher dlq redrive bookings --rate 10\n  usher dlq redrive bookings premiere/1.42",
		Args:    atLeast("the id of a relay"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if rate <= 0 || rate > 10_000 {
				return &usageError{fmt.Errorf("--rate %v: more than 0, at most 10000", rate)}
			}
			c, err := af.client()
			if err != nil {
				return err
			}
			return redrive(cmd.Context(), c, cmd.OutOrStdout(), args[0], args[1:], rate)
		},
	}
	cmd.Flags().Float64Var(&rate, "rate", 50, "letters a second")
	return cmd
}

// redrive asks as often as there is something left: one call takes at most some seconds.
func redrive(ctx context.Context, c *adminapi.Client, w io.Writer, id string, events []string, rate float64) error {
	before := time.Now().UTC()
	taken, failed := 0, 0
	for {
		body := map[string]any{"per_second": rate, "limit": int(min(max(10*rate, 1), 500)), "before": before}
		if len(events) > 0 {
			body["ids"] = events[:min(len(events), body["limit"].(int))]
			events = events[len(body["ids"].([]string)):]
		}
		var out struct {
			Taken, Failed, Left int
			Stopped             string
		}
		if _, err := c.Do(ctx, http.MethodPost, relayPath(id, "/dlq/redrive"), nil, body, &out); err != nil {
			return err
		}
		taken, failed = taken+out.Taken, failed+out.Failed
		named := body["ids"] != nil
		if out.Stopped != "" || out.Taken+out.Failed == 0 && !named || named && len(events) == 0 {
			fmt.Fprintf(w, "%d brought back, %d refused again, %d dead letters left\n", taken, failed, out.Left)
			if out.Stopped != "" {
				return errors.New(out.Stopped)
			}
			return nil
		}
	}
}

func newDLQDropCmd(df *dlqFlags) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "drop RELAY EVENT…", Short: "Forget dead letters for good",
		Example: "  usher dlq drop bookings premiere/1.42\n  usher dlq export bookings > letters.jsonl && usher dlq drop bookings --all",
		Args:    atLeast("the id of a relay"),
		RunE: func(cmd *cobra.Command, args []string) error {
			events := args[1:]
			if all == (len(events) > 0) {
				return &usageError{errors.New("name events, or say --all")}
			}
			c, closer, err := df.open()
			if err != nil {
				return err
			}
			defer closer()
			if all {
				err := eachLetter(cmd.Context(), c, args[0], func(l relay.Letter) error {
					events = append(events, l.Event.ID)
					return nil
				})
				if err != nil {
					return err
				}
			}
			dropped := 0
			for len(events) > 0 {
				n := min(len(events), 1000)
				k, err := c.Drop(cmd.Context(), args[0], events[:n]...)
				if err != nil {
					return err
				}
				dropped, events = dropped+k, events[n:]
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d dropped\n", dropped)
			if named := len(args) - 1; dropped < named {
				return fmt.Errorf("%d of %d are no dead letters of %s; usher dlq list %[3]s shows which are", named-dropped, named, args[0])
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all that there are now")
	return cmd
}

func newDLQExportCmd(df *dlqFlags) *cobra.Command {
	return &cobra.Command{
		Use: "export RELAY", Short: "Write all dead letters as JSON lines",
		Example: "  usher dlq export bookings > letters.jsonl",
		Args:    wantArgs("the id of a relay"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, closer, err := df.open()
			if err != nil {
				return err
			}
			defer closer()
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetEscapeHTML(false)
			return eachLetter(cmd.Context(), c, args[0], func(l relay.Letter) error { return enc.Encode(l) })
		},
	}
}
