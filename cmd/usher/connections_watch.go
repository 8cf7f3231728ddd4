package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/connapi"
)

func newConnWatchCmd(sf *serviceFlags) *cobra.Command {
	var asJSON bool
	var every time.Duration
	var most int
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Watch live who holds what, with messages a second and lag",
		Long: `watch shows workers and connections as they change, until Ctrl-C. In a terminal it
redraws; into a pipe or file it writes tables, with --json one line each time. Messages
a second are by the movement of cursors, which any node sees. Lag is that of each worker, as
of its last beat, and of each connection that the node holds that is asked.`,
		Example: "  usher connections watch\n  usher connections watch --every 5s --lines 100",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 500*time.Millisecond {
				return &usageError{fmt.Errorf("--every %s is too often: it reads all rows; the least is 500ms", every)}
			}
			c, err := sf.client()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			w := &connWatch{out: cmd.OutOrStdout(), json: asJSON, live: !asJSON && terminal(cmd.OutOrStdout()), most: most}
			defer w.end()
			return w.run(ctx, c, every)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print a line of JSON each time")
	flags.DurationVar(&every, "every", 2*time.Second, "how often to look")
	flags.IntVar(&most, "lines", 30, "most connections shown; those that move or fail first")
	return cmd
}

// connWatch draws the same tables again and again.
type connWatch struct {
	out   io.Writer
	json  bool
	live  bool
	drawn bool
	most  int

	at    time.Time
	seqs  map[string]int64
	rates map[string]float64
	last  bytes.Buffer // the last tables
}

func (w *connWatch) run(ctx context.Context, c *connapi.Client, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		list, err := sortedList(ctx, c)
		var k connapi.Keeper
		if err == nil {
			k, err = c.Keeper(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && first {
			return err // most likely the address or the token
		}
		if err := w.show(c.Base(), time.Now(), list, k, err); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// count finds out rates from the last look.
func (w *connWatch) count(at time.Time, list []connapi.Connection) {
	rates, seqs := map[string]float64{}, map[string]int64{}
	for _, c := range list {
		seqs[c.ID] = c.LastSeq
		if before, ok := w.seqs[c.ID]; c.Live != nil {
			rates[c.ID] = c.Live.PerSecond
		} else if ok {
			rates[c.ID] = float64(max(c.LastSeq-before, 0)) / at.Sub(w.at).Seconds()
		}
	}
	w.at, w.seqs, w.rates = at, seqs, rates
}

func (w *connWatch) show(base string, at time.Time, list []connapi.Connection, k connapi.Keeper, err error) error {
	if err == nil {
		w.count(at, list)
	}
	if w.json {
		doc := struct {
			At          time.Time          `json:"at"`
			Workers     any                `json:"workers,omitempty"`
			Connections []json.RawMessage  `json:"connections,omitempty"`
			PerSecond   map[string]float64 `json:"messages_per_second,omitempty"`
			Error       string             `json:"error,omitempty"`
		}{At: at.UTC(), Workers: k.Workers, PerSecond: w.rates}
		for _, c := range list {
			doc.Connections = append(doc.Connections, c.Raw)
		}
		if err != nil {
			doc.Error, doc.PerSecond, doc.Workers = err.Error(), nil, nil
		}
		return json.NewEncoder(w.out).Encode(doc)
	}
	if err == nil {
		w.last.Reset()
		if err := w.tables(list, k); err != nil {
			return err
		}
	}
	var frame bytes.Buffer
	fmt.Fprintf(&frame, "usher at %s, %s\n\n%s", base, at.Format("15:04:05"), w.last.Bytes())
	if err != nil {
		fmt.Fprintf(&frame, "\nas it was: %v; trying again\n", err)
	}
	if !w.live {
		_, err := fmt.Fprintf(w.out, "%s\n", frame.Bytes())
		return err
	}
	head := "\x1b[H"
	if !w.drawn {
		head = "\x1b[?25l\x1b[2J\x1b[H" // hide the cursor, clear
		w.drawn = true
	}
	_, werr := fmt.Fprint(w.out, head+strings.ReplaceAll(frame.String(), "\n", "\x1b[K\n")+"\x1b[J")
	return werr
}

func (w *connWatch) tables(list []connapi.Connection, k connapi.Keeper) error {
	rates := map[string]float64{}
	for _, c := range list {
		if c.Owner != nil {
			rates[c.Owner.Worker] += w.rates[c.ID]
		}
	}
	tw := tabwriter.NewWriter(&w.last, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "WORKER\tSTATE\tCONNECTIONS\tCAP\tMESSAGES/S\tOPEN\tBLOCKED\tPENDING\tLAG")
	for _, x := range k.Workers {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%.1f\t", oneLine(x.Worker, 40), x.State, x.Connections, x.Cap, rates[x.Worker])
		if t := x.Told; t != nil {
			fmt.Fprintf(tw, "%d\t%d\t%d\t%.1f s", t.Open, t.Blocked, t.Pending, float64(t.LagMS)/1000)
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if a := k.Advice; a != nil {
		fmt.Fprintf(&w.last, "%d workers recommended for %d connections: %s\n", a.Recommended, a.Connections, oneLine(a.Reason, 80))
	}
	w.last.WriteByte('\n')
	shown := slices.Clone(list)
	if w.most > 0 && len(shown) > w.most {
		slices.SortStableFunc(shown, func(a, b connapi.Connection) int { return w.weight(b) - w.weight(a) })
	}
	return connectionTable(&w.last, shown, w.rates, w.most)
}

// weight brings to the top what somebody may want to see.
func (w *connWatch) weight(c connapi.Connection) int {
	switch state := connState(c); {
	case state == "invalid" || state == "blocked" || state == "pausing":
		return 3
	case state == "unowned":
		return 2
	case w.rates[c.ID] > 0:
		return 1
	}
	return 0
}

// end gives the cursor back.
func (w *connWatch) end() {
	if w.drawn {
		fmt.Fprint(w.out, "\x1b[?25h")
	}
}
