package main

import (
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/relay"
)

func newRelaysCmd() *cobra.Command {
	var af adminFlags
	cmd := group("relays", "Look at relays and steer them while usher runs",
		`relays talks to the admin API of a running usher. What is said holds on all nodes that
share its engine, and over restarts.`,
		`  usher relays list
  usher relays pause bookings
  usher relays resume bookings                 # also behind a gap
  usher relays seek bookings --to oldest       # send everything again
  usher relays seek bookings --at 2026-12-04T10:00:00Z`)
	af.register(cmd)
	steer := func(verb, short string) *cobra.Command {
		return &cobra.Command{
			Use: verb + " RELAY", Short: short, Example: "  usher relays " + verb + " bookings", Args: wantArgs("the id of a relay"),
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := af.client()
				if err != nil {
					return err
				}
				_, err = c.Do(cmd.Context(), http.MethodPost, relayPath(args[0], "/"+verb), nil, nil, nil)
				return err
			},
		}
	}
	cmd.AddCommand(newRelaysListCmd(&af), steer("pause", "Carry nothing until it is resumed"),
		steer("resume", "Go on, after a pause or behind a gap"), newRelaysSeekCmd(&af))
	return cmd
}

func newRelaysListCmd(af *adminFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List relays with cursors, lag and alarms",
		Example: "  usher relays list\n  usher relays list --json | jq '.[].alarm'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := af.client()
			if err != nil {
				return err
			}
			var out struct {
				Relays []relay.Status `json:"relays"`
			}
			if _, err := c.Do(cmd.Context(), http.MethodGet, "/admin/v1/relays", nil, nil, &out); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), out.Relays)
			}
			return relayTable(cmd.OutOrStdout(), out.Relays)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func relayTable(w io.Writer, list []relay.Status) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "There is no relay. Add one to the configuration file, under relay.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "RELAY\tPARTITION\tSTATE\tOWNER\tCURSOR\tLAG\tDEAD LETTERS\tALARM")
	for _, r := range list {
		for _, p := range r.Partitions {
			lag, alarm := "", ""
			if p.Here != nil {
				lag, alarm = p.Here.Lag.Round(time.Millisecond).String(), p.Here.Alarm
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.ID, oneLine(p.Name, 40), p.State, oneLine(p.Owner, 30), oneLine(p.Cursor, 40), lag, r.Dead.Letters, alarm)
		}
		if len(r.Partitions) == 0 {
			fmt.Fprintf(tw, "%s\t\twaiting\t\t\t\t%d\t%s\n", r.ID, r.Dead.Letters, r.Alarm)
		}
		if r.Why != "" {
			fmt.Fprintf(tw, "\t%s\n", oneLine(r.Why, 400))
		}
	}
	return tw.Flush()
}

func newRelaysSeekCmd(af *adminFlags) *cobra.Command {
	var to, at, after string
	cmd := &cobra.Command{
		Use: "seek RELAY", Short: "Begin again from somewhere",
		Long:    "seek moves the relay's cursors. What is sent twice by it has the same event id.",
		Example: "  usher relays seek bookings --to oldest\n  usher relays seek bookings --at 2026-12-04T10:00:00Z\n  usher relays seek bookings --after 1.42",
		Args:    wantArgs("the id of a relay"),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{}
			for key, value := range map[string]string{"to": to, "at": at, "after": after} {
				if value != "" {
					body[key] = value
				}
			}
			if len(body) != 1 {
				return &usageError{fmt.Errorf("say where to: one of --to, --at and --after")}
			}
			c, err := af.client()
			if err != nil {
				return err
			}
			_, err = c.Do(cmd.Context(), http.MethodPost, relayPath(args[0], "/seek"), nil, body, nil)
			return err
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "oldest or newest")
	cmd.Flags().StringVar(&at, "at", "", "a time, RFC 3339: from what happened then or later")
	cmd.Flags().StringVar(&after, "after", "", "a position, as 1.42 of a room's log")
	return cmd
}
