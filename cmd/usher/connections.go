package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/connapi"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/lease"
)

// serviceFlags say which usher's service API is meant.
type serviceFlags struct{ url, tokenFile, config string }

func (f *serviceFlags) register(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.url, "admin", "", "address of the admin listener (default USHER_ADMIN_URL, --config, or http://127.0.0.1:8081)")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with a service token (default USHER_SERVICE_TOKEN, or the first of service.tokens in --config)")
	flags.StringVar(&f.config, "config", "", "configuration file of the running usher, to take address and token from")
}

func (f *serviceFlags) client() (*connapi.Client, error) {
	var token config.Secret
	url, from := f.url, ""
	if url == "" {
		url = os.Getenv("USHER_ADMIN_URL")
	}
	if f.config != "" {
		c, err := config.Load(f.config)
		if err != nil {
			return nil, err
		}
		if url == "" {
			url = adminURL(c)
		}
		if len(c.Service.Tokens) > 0 {
			token, from = c.Service.Tokens[0], f.config
		}
	}
	if url == "" {
		url = "http://127.0.0.1:8081"
	}
	if f.tokenFile != "" {
		t, err := readToken(f.tokenFile)
		if err != nil {
			return nil, err
		}
		token, from = t, f.tokenFile
	} else if env := strings.TrimSpace(os.Getenv("USHER_SERVICE_TOKEN")); env != "" {
		token, from = config.NewSecret(env), "USHER_SERVICE_TOKEN"
	}
	return connapi.New(url, token, from)
}

func newConnectionsCmd() *cobra.Command {
	var sf serviceFlags
	cmd := group("connections", "Look at the connections that the keeper holds, and change them",
		`connections talks to the service API of any node with a keeper: section; all workers of the
space do what it says. It needs one of service.tokens.`,
		`  usher connections add feed-1 wss://feed.example.com/v1 --header-env Authorization=FEED_AUTH --cursor seq --resume 'from={cursor}&fence={fence}'
  usher connections list
  usher connections watch
  usher connections stop feed-1
  usher connections remove feed-1`)
	cmd.Aliases = []string{"conns"}
	sf.register(cmd)
	cmd.AddCommand(newConnAddCmd(&sf), newConnDesiredCmd(&sf, "stop", lease.Stopped, "Close connections; their cursors stay"),
		newConnDesiredCmd(&sf, "start", lease.Started, "Open stopped connections again, from their cursors"),
		newConnRemoveCmd(&sf), newConnListCmd(&sf), newConnShowCmd(&sf), newConnWatchCmd(&sf))
	return cmd
}

func newConnAddCmd(sf *serviceFlags) *cobra.Command {
	var s keeper.Spec
	var headers, fromEnv []string
	var stopped bool
	cmd := &cobra.Command{
		Use:   "add ID URL",
		Short: "Make a connection, or change it",
		Long: `add makes a connection, or changes one of that id: its cursor stays, and headers that are
not given stay too. In --resume and --resume-message {cursor} is the number of the last
message stored, {next} that plus one, {fence} a number that grows with each owner.`,
		Example: `  usher connections add feed-1 wss://feed.example.com/v1 --cursor seq --resume 'from={cursor}&fence={fence}'
  usher connections add feed-2 wss://feed.example.com/v1 --header-env Authorization=FEED_AUTH --cursor meta.seq --resume-message '{"resume":{next}}'`,
		Args: wantArgs("an id", "a URL, as wss://feed.example.com/v1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := headersOf(headers, fromEnv)
			if err != nil {
				return &usageError{err}
			}
			c, err := sf.client()
			if err != nil {
				return err
			}
			s.URL, s.Desired = args[1], lease.Started
			if stopped {
				s.Desired = lease.Stopped
			}
			doc, err := c.Put(cmd.Context(), args[0], s, set)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, revision %d, from message %d\n", doc.ID, doc.Desired, doc.Revision, doc.LastSeq)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&headers, "header", nil, "NAME=VALUE of the handshake; again for more. Others of this machine can read a command line: use --header-env for secrets")
	flags.StringArrayVar(&fromEnv, "header-env", nil, "NAME=VARIABLE: a header whose value is in the environment")
	flags.StringSliceVar(&s.Subprotocols, "subprotocol", nil, "subprotocols, the best first")
	flags.StringVar(&s.Cursor.JSON, "cursor", "", "path of the number in each message, as seq or meta.seq")
	flags.Int64Var(&s.Cursor.Start, "start", 0, "cursor of a new connection")
	flags.StringVar(&s.Resume.Query, "resume", "", "added to the URL's query, as 'from={cursor}&fence={fence}'")
	flags.StringVar(&s.Resume.Message, "resume-message", "", "first message, as '{\"resume\":{next}}'")
	flags.BoolVar(&stopped, "stopped", false, "do not open it yet")
	return cmd
}

func headersOf(plain, fromEnv []string) (map[string]string, error) {
	var set map[string]string
	for i, list := range [][]string{plain, fromEnv} {
		for _, h := range list {
			name, value, ok := strings.Cut(h, "=")
			if !ok || name == "" {
				return nil, fmt.Errorf("%q is no header; write NAME=VALUE", h)
			}
			if i == 1 {
				variable := value
				if value, ok = os.LookupEnv(variable); !ok {
					return nil, fmt.Errorf("--header-env %s: there is no variable %s", h, variable)
				}
			}
			if set == nil {
				set = map[string]string{}
			}
			set[name] = value
		}
	}
	return set, nil
}

func newConnDesiredCmd(sf *serviceFlags, verb string, desired lease.Desired, short string) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " ID...",
		Short:   short,
		Example: "  usher connections " + verb + " feed-1",
		Args:    atLeastOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := sf.client()
			if err != nil {
				return err
			}
			return each(args, func(id string) error {
				doc, err := c.Get(cmd.Context(), id)
				if err != nil {
					return err
				}
				s := keeper.Spec{URL: doc.URL, Subprotocols: doc.Subprotocols, Desired: desired, Cursor: doc.Cursor, Resume: doc.Resume}
				if _, err := c.Put(cmd.Context(), id, s, nil); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is to be %s\n", id, desired)
				return err
			})
		},
	}
}

func newConnRemoveCmd(sf *serviceFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "remove ID...",
		Aliases: []string{"rm"},
		Short:   "Close connections and forget their cursors; stored messages stay",
		Example: "  usher connections remove feed-1",
		Args:    atLeastOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := sf.client()
			if err != nil {
				return err
			}
			return each(args, func(id string) error {
				if err := c.Delete(cmd.Context(), id); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is gone\n", id)
				return err
			})
		},
	}
}

func atLeastOne(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return wantArgs("the id of a connection")(cmd, args)
	}
	return nil
}

// each goes on after an error.
func each(ids []string, f func(id string) error) error {
	var errs []error
	for _, id := range ids {
		if err := f(id); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func newConnListCmd(sf *serviceFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List connections with their owners and cursors",
		Example: "  usher connections list\n  usher connections list --json | jq -r '.[].id'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := sf.client()
			if err != nil {
				return err
			}
			list, err := sortedList(cmd.Context(), c)
			if err != nil {
				return err
			}
			if asJSON {
				raw := make([]json.RawMessage, len(list))
				for i, conn := range list {
					raw[i] = conn.Raw
				}
				return printJSON(cmd.OutOrStdout(), raw)
			}
			return connectionTable(cmd.OutOrStdout(), list, nil, 0)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func sortedList(ctx context.Context, c *connapi.Client) ([]connapi.Connection, error) {
	list, err := c.List(ctx)
	slices.SortFunc(list, func(a, b connapi.Connection) int { return strings.Compare(a.ID, b.ID) })
	return list, err
}

// connectionTable prints connections; rates has their messages a second, where they are known. most bounds the lines.
func connectionTable(w io.Writer, list []connapi.Connection, rates map[string]float64, most int) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "There is no connection yet. Make one with usher connections add.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "CONNECTION\tSTATE\tOWNER\tFENCE\tLAST MESSAGE\t")
	if rates != nil {
		fmt.Fprint(tw, "MESSAGES/S\tLAG\t")
	}
	fmt.Fprintln(tw, "NOTE")
	for i, c := range list {
		if most > 0 && i == most {
			break
		}
		owner, note, lag, last := "nobody", c.Problem, "", c.LastSeq
		if c.Owner != nil {
			owner = c.Owner.Worker
		}
		if c.Live != nil {
			lag, last = fmt.Sprintf("%.1f s", float64(c.Live.LagMS)/1000), max(last, c.LastSeq)
			if note == "" {
				note = c.Live.Error
			}
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t", oneLine(c.ID, 40), connState(c), oneLine(owner, 32), c.Fence, last)
		if rates != nil {
			fmt.Fprintf(tw, "%.1f\t%s\t", rates[c.ID], lag)
		}
		fmt.Fprintln(tw, oneLine(note, 60))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if most > 0 && len(list) > most {
		_, err := fmt.Fprintf(w, "and %d more\n", len(list)-most)
		return err
	}
	return nil
}

// connState is a word for how a connection is. Whether its socket is open only its own worker's node knows.
func connState(c connapi.Connection) string {
	switch {
	case c.Problem != "":
		return "invalid"
	case c.Live != nil && c.Live.Blocked:
		return "blocked"
	case c.Live != nil:
		return c.Live.State
	case c.Desired == string(lease.Stopped):
		return "stopped"
	case c.Owner == nil:
		return "unowned"
	}
	return "held"
}

func newConnShowCmd(sf *serviceFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a connection; of its headers, the names",
		Example: "  usher connections show feed-1",
		Args:    wantArgs("the id of a connection"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := sf.client()
			if err != nil {
				return err
			}
			conn, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), conn.Raw)
			}
			text, err := yamlOf(conn.Raw)
			if err == nil {
				_, err = cmd.OutOrStdout().Write(text)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
