package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
)

func newRoomsWatchCmd(af *adminFlags) *cobra.Command {
	var asJSON bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "watch [ROOM...]",
		Short: "Watch rooms live",
		Long: `watch shows all rooms, or those named, as they change, until Ctrl-C. In a terminal
it redraws; into a pipe or file it writes a table each time, with --json one line each.`,
		Example: "  usher rooms watch\n  usher rooms watch premiere --every 5s\n  usher rooms watch --json > numbers.jsonl",
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return &usageError{fmt.Errorf("--every %s is too often; the least is 100ms", every)}
			}
			c, err := af.client()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			w := &watch{out: cmd.OutOrStdout(), ids: args, json: asJSON, live: !asJSON && terminal(cmd.OutOrStdout())}
			defer w.end()
			tick := time.NewTicker(every)
			defer tick.Stop()
			for first := true; ; first = false {
				rooms, err := c.Rooms(ctx)
				if ctx.Err() != nil {
					return nil
				}
				if err == nil {
					rooms, err = pick(rooms, args)
				}
				if err != nil && first {
					return err // most likely the address or the token
				}
				if err := w.show(c.Base(), time.Now(), rooms, err); err != nil {
					return err
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return nil
				}
			}
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON each time")
	cmd.Flags().DurationVar(&every, "every", time.Second, "how often to look")
	return cmd
}

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb"
}

func pick(rooms []adminapi.Room, ids []string) ([]adminapi.Room, error) {
	if len(ids) == 0 {
		return rooms, nil
	}
	var out []adminapi.Room
	for _, id := range ids {
		i := slices.IndexFunc(rooms, func(r adminapi.Room) bool { return r.Config.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("there is no room %q; usher rooms list shows those there are", id)
		}
		out = append(out, rooms[i])
	}
	return out, nil
}

// watch draws the same few lines again and again.
type watch struct {
	out   io.Writer
	ids   []string
	json  bool
	live  bool
	drawn bool
	last  []adminapi.Room
}

func (w *watch) show(base string, at time.Time, rooms []adminapi.Room, err error) error {
	if w.json {
		return w.line(at, rooms, err)
	}
	if err == nil {
		w.last = rooms
	}
	var frame bytes.Buffer
	fmt.Fprintf(&frame, "usher at %s, %s\n\n", base, at.Format("15:04:05"))
	if tableErr := roomTable(&frame, w.last); tableErr != nil {
		return tableErr
	}
	for _, r := range w.last {
		if r.Limit != nil && *r.Limit > 0 {
			fmt.Fprintf(&frame, "\n%-20s %s %3.0f %%", oneLine(r.Config.ID, 20), gauge(r.Active, *r.Limit, 30), 100*float64(r.Active)/float64(*r.Limit))
		}
	}
	frame.WriteByte('\n')
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
	body := strings.ReplaceAll(frame.String(), "\n", "\x1b[K\n")
	_, writeErr := fmt.Fprint(w.out, head+body+"\x1b[J")
	return writeErr
}

func (w *watch) line(at time.Time, rooms []adminapi.Room, err error) error {
	doc := struct {
		At    time.Time         `json:"at"`
		Rooms []json.RawMessage `json:"rooms,omitempty"`
		Error string            `json:"error,omitempty"`
	}{At: at.UTC()}
	for _, r := range rooms {
		doc.Rooms = append(doc.Rooms, r.Raw)
	}
	if err != nil {
		doc.Error = err.Error()
	}
	return json.NewEncoder(w.out).Encode(doc)
}

// end gives the cursor back.
func (w *watch) end() {
	if w.drawn {
		fmt.Fprint(w.out, "\x1b[?25h")
	}
}

func gauge(n, of int64, width int) string {
	full := min(int(n*int64(width)/of), width)
	if n > 0 && full == 0 {
		full = 1
	}
	return "[" + strings.Repeat("█", full) + strings.Repeat("·", width-full) + "]"
}
