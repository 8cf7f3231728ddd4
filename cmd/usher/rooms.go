package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
	"github.com/ushergo/usher/config"
)

func newRoomsCmd() *cobra.Command {
	var af adminFlags
	cmd := group("rooms", "Look at rooms and change them while usher runs",
		`rooms talks to the admin API of a running usher. A change holds on all its nodes
until somebody makes another, or changes the room in the configuration file.`,
		`  usher rooms list
  usher rooms show premiere
  usher rooms watch
  usher rooms pause premiere --message "The house lights are on. Back at 20:15."
  usher rooms open premiere
  usher rooms set premiere active=800 rate_per_minute=1200
  usher rooms close premiere`)
	af.register(cmd)
	cmd.AddCommand(
		newRoomsListCmd(&af), newRoomsShowCmd(&af), newRoomsSetCmd(&af), newRoomsWatchCmd(&af),
		newRoomsStateCmd(&af, "pause", "paused", "Stop admitting; everybody keeps their place"),
		newRoomsStateCmd(&af, "open", "open", "Admit again"),
		newRoomsStateCmd(&af, "close", "closed", "Refuse new visitors; those who wait are still admitted, at the usual rate"),
	)
	return cmd
}

func newRoomsListCmd(af *adminFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List rooms with their numbers",
		Example: "  usher rooms list\n  usher rooms list --json | jq '.[].waiting'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := af.client()
			if err != nil {
				return err
			}
			rooms, err := c.Rooms(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				raw := make([]json.RawMessage, len(rooms))
				for i, r := range rooms {
					raw[i] = r.Raw
				}
				return printJSON(cmd.OutOrStdout(), raw)
			}
			return roomTable(cmd.OutOrStdout(), rooms)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func roomTable(w io.Writer, rooms []adminapi.Room) error {
	if len(rooms) == 0 {
		_, err := fmt.Fprintln(w, "There is no room yet. Add one to the configuration file, or by PUT on the admin API.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ROOM\tSTATE\tACTIVE\tLIMIT\tWAITING\tADMITTED\tPER MINUTE\tMESSAGE")
	for _, r := range rooms {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%d\t%d\t%.0f\t%s\n", r.Config.ID, r.State, r.Active, limitText(r.Limit),
			r.Waiting, r.AdmittedTotal, r.RatePerMinute, oneLine(r.Message, 40))
	}
	return tw.Flush()
}

func limitText(limit *int64) string {
	if limit == nil {
		return "none"
	}
	return strconv.FormatInt(*limit, 10)
}

// oneLine makes what others wrote safe for a terminal, and short.
func oneLine(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return s
}

func newRoomsShowCmd(af *adminFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show ROOM",
		Short:   "Show a room's numbers and settings",
		Example: "  usher rooms show premiere\n  usher rooms show premiere --json",
		Args:    wantArgs("the id of a room"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := af.client()
			if err != nil {
				return err
			}
			r, err := c.Room(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), r.Raw)
			}
			return showRoom(cmd.OutOrStdout(), r)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showRoom(w io.Writer, r *adminapi.Room) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "room\t%s\n", r.Config.ID)
	fmt.Fprintf(tw, "state\t%s\n", r.State)
	if r.Message != "" {
		fmt.Fprintf(tw, "message\t%s\n", oneLine(r.Message, 200))
	}
	fmt.Fprintf(tw, "active\t%d of %s\n", r.Active, limitText(r.Limit))
	fmt.Fprintf(tw, "waiting\t%d\n", r.Waiting)
	fmt.Fprintf(tw, "admitted\t%d in all, %.0f a minute now\n", r.AdmittedTotal, r.RatePerMinute)
	fmt.Fprintf(tw, "revision\t%d\n", r.Revision)
	if err := tw.Flush(); err != nil {
		return err
	}
	var answer struct {
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(r.Raw, &answer); err != nil {
		return err
	}
	text, err := yamlOf(answer.Config)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nsettings now, written as in the file:\n%s", text)
	return err
}

// yamlOf writes JSON as YAML in the same order of keys: JSON is YAML, so its
// nodes need only another style.
func yamlOf(data []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	var plain func(n *yaml.Node, depth int)
	plain = func(n *yaml.Node, depth int) {
		n.Style = 0
		if depth > 2 && n.Kind != yaml.ScalarNode {
			n.Style = yaml.FlowStyle
		}
		for _, child := range n.Content {
			plain(child, depth+1)
		}
	}
	plain(&doc, 0)
	return yaml.Marshal(&doc)
}

func newRoomsSetCmd(af *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "set ROOM KEY=VALUE...",
		Short: "Change settings of a room at once, for everybody",
		Long: `set changes settings of a room while it runs. Keys are those of the configuration
file, with or without their section. Lowering a limit throws nobody out: nobody is
admitted until enough have left. The change stands until the room is changed again,
here or in the file.`,
		Example: `  usher rooms set premiere active=800
  usher rooms set premiere active=800 rate_per_minute=1200
  usher rooms set premiere queue.order=random session.idle=3m`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return wantArgs("the id of a room", "KEY=VALUE, as active=800")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			patch, err := config.RoomPatch(args[1:])
			if err != nil {
				return &usageError{err}
			}
			c, err := af.client()
			if err != nil {
				return err
			}
			r, err := c.Patch(cmd.Context(), args[0], patch)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, revision %d. %d active of %s, %d waiting.\n",
				r.Config.ID, strings.Join(args[1:], ", "), r.Revision, r.Active, limitText(r.Limit), r.Waiting)
			return err
		},
	}
}

func newRoomsStateCmd(af *adminFlags, verb, state, short string) *cobra.Command {
	var message string
	cmd := &cobra.Command{
		Use:     verb + " ROOM",
		Short:   short,
		Example: fmt.Sprintf("  usher rooms %s premiere\n  usher rooms %s premiere --message \"Thank you for your patience\"", verb, verb),
		Args:    wantArgs("the id of a room"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := af.client()
			if err != nil {
				return err
			}
			if err := c.SetState(cmd.Context(), args[0], state, message); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is %s\n", args[0], state)
			return err
		},
	}
	cmd.Flags().StringVarP(&message, "message", "m", "", "what those who wait are told; empty: nothing")
	return cmd
}
