package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/examples/cinema"
	"github.com/ushergo/usher/internal/crowd"
)

// Options are the command's flags.
type Options struct {
	Visitors int
	Active   int
	Speed    float64
	Listen   string // a taken port gives way to the next free one
	Admin    string
	Browser  bool // open the page on a desktop
}

// Check names the flag that is wrong.
func (o Options) Check() error {
	switch {
	case o.Visitors < 1 || o.Visitors > 20_000:
		return fmt.Errorf("--visitors %d: choose from 1 to 20000", o.Visitors)
	case o.Active < 1 || o.Active > 100_000:
		return fmt.Errorf("--active %d: choose from 1 to 100000", o.Active)
	case !(o.Speed >= 0.1 && o.Speed <= 100):
		return fmt.Errorf("--speed %g: choose from 0.1 to 100", o.Speed)
	}
	return nil
}

// Terminal is where the demo shows itself.
type Terminal struct {
	Out, Err io.Writer
	// Screen takes over the terminal if Out is one; nil or false means plain lines.
	Screen func() (*Screen, bool)
	Getenv func(string) string
}

const (
	room     = "premiere"
	pagePath = "/premiere"
	frame    = 250 * time.Millisecond
	// Short times, so that a demo shows in a minute what a sale shows in an hour. A
	// minute of grace is the least that a browser's hidden tab lives within.
	idle, longest = 2 * time.Minute, 10 * time.Minute
	claim, grace  = 20 * time.Second, time.Minute
	stay          = 2200 * time.Millisecond // with it a newcomer waits a minute or so
	onSale        = 60                      // seats; below it the cinema adds a showing
)

// Run runs the demo until ctx ends, which is its good end: the error is nil.
func Run(ctx context.Context, opt Options, t Terminal, start Starter) (err error) {
	if err := opt.Check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "usher-demo-")
	if err != nil {
		return fmt.Errorf("a folder for the demo's data: %w; set TMPDIR to one that can be written", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	d := &demo{opt: opt, t: t, feed: &feed{}, guests: newGuests(), began: time.Now()}
	d.log = slog.New(slog.NewTextHandler(d.feed, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := d.openSite(ctx, dir); err != nil {
		return err
	}
	defer d.closeSite()
	if err := d.openUsher(ctx, dir, start); err != nil {
		return err
	}
	defer func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, d.server.Close(grace))
	}()
	return d.show(ctx)
}

type demo struct {
	opt    Options
	t      Terminal
	log    *slog.Logger
	feed   *feed
	guests *guests
	began  time.Time
	site   *cinema.Site
	http   *http.Server
	server Server
	reader *reader
	crowd  *crowd.Crowd
	meter  meter
	inside atomic.Int64 // by the room's count; the cinema writes it on its pages
	state  State
}

// openSite starts the cinema on a free port of its own.
func (d *demo) openSite(ctx context.Context, dir string) error {
	site, err := cinema.Open(ctx, filepath.Join(dir, "cinema.db"), cinema.Options{Conns: 4, Log: d.log,
		Inside: func() int { return int(d.inside.Load()) }})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(fmt.Errorf("a port for the cinema: %w", err), site.Close())
	}
	d.site, d.state.Site = site, urlOf(ln.Addr().String())
	d.http = &http.Server{Handler: site, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn)}
	go func() {
		if err := d.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("the cinema stopped", "err", err)
		}
	}()
	return nil
}

func (d *demo) closeSite() {
	d.http.Close()
	d.site.Close()
}

// openUsher starts Usher in front of the cinema and waits until it answers.
func (d *demo) openUsher(ctx context.Context, dir string, start Starter) error {
	public, admin, notes, err := freeAddrs(d.opt.Listen, d.opt.Admin)
	if err != nil {
		return err
	}
	d.state.Notes = notes
	token := rand.Text()
	d.state.TokenFile = filepath.Join(dir, "admin-token")
	data := filepath.Join(dir, "usher")
	if err := errors.Join(os.WriteFile(d.state.TokenFile, []byte(token+"\n"), 0o600), os.Mkdir(data, 0o700)); err != nil {
		return err
	}
	d.state.Room, d.state.Look, d.state.Admin = room, urlOf(public)+pagePath, urlOf(admin)
	if d.server, err = start(ctx, Plan{Public: public, Admin: admin, AdminToken: token, Dir: data, Room: room, Path: pagePath,
		Origin: d.state.Site, Active: d.opt.Active, Idle: idle, Max: longest, Claim: claim, Grace: grace, Log: d.log}); err != nil {
		return err
	}
	api, err := adminapi.New(d.state.Admin, config.NewSecret(token), d.state.TokenFile)
	if err == nil {
		d.reader = &reader{api: api, room: room, each: func(kind, id, reason string, seq int64) {
			if text := d.guests.event(kind, id, reason, seq, time.Now()); text != "" {
				d.feed.add(Line{At: time.Now(), Text: text})
			}
		}}
		err = d.ready(ctx)
	}
	if err == nil {
		d.crowd, err = crowd.New(crowd.Options{Base: urlOf(public), Room: room, Path: pagePath, Visitors: d.opt.Visitors, Keep: true,
			Ramp: time.Duration(float64(6*time.Second) / d.opt.Speed), Speed: d.opt.Speed, Stay: stay, Grace: grace,
			Seed: uint64(d.began.UnixNano()), Observe: d.observe})
	}
	if err != nil {
		return errors.Join(err, d.server.Close(context.WithoutCancel(ctx)))
	}
	return nil
}

// observe hears every event of the crowd.
func (d *demo) observe(e crowd.Event) {
	if e.Kind == crowd.Arrived {
		d.guests.ours(e.TicketID)
	}
	d.feed.crowd(e)
}

// ready waits for the first reading.
func (d *demo) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		counts, err := d.reader.read(ctx)
		if err == nil {
			d.state.Counts = counts
			return nil
		}
		select {
		case failed := <-d.server.Failed():
			return failed
		case <-ctx.Done():
			return fmt.Errorf("usher did not start answering: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// show sends the crowd and draws until ctx ends.
func (d *demo) show(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		d.crowd.Run(ctx)
	}()
	var screen *Screen
	if d.t.Screen != nil {
		if s, ok := d.t.Screen(); ok {
			screen = s
		}
	}
	if screen == nil {
		d.greet()
	}
	if d.opt.Browser {
		openBrowser(d.state.Look, d.t.Getenv)
	}
	failed := d.loop(ctx, screen)
	if screen != nil {
		screen.Close() // before anything else is written
	}
	cancel()
	<-gone
	d.farewell(failed)
	return failed
}

func (d *demo) loop(ctx context.Context, screen *Screen) error {
	tick := time.NewTicker(frame)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case err := <-d.server.Failed():
			return err
		case <-tick.C:
		}
		d.update(ctx, n)
		if ctx.Err() != nil {
			return nil
		}
		if screen != nil {
			if err := screen.Show(d.state); err != nil {
				return fmt.Errorf("writing to the terminal: %w", err)
			}
		} else if n%8 == 7 {
			if _, err := fmt.Fprintln(d.t.Out, PlainLine(d.state)); errors.Is(err, syscall.EPIPE) {
				return nil // the reader has seen enough
			} else if err != nil {
				return fmt.Errorf("writing the figures: %w", err)
			}
		}
	}
}

// update reads everything anew; the n-th frame of each second also samples, and
// keeps the cinema's seats on sale.
func (d *demo) update(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s := &d.state
	s.Elapsed, s.Crowd, s.Events = time.Since(d.began), d.crowd.Stats(), d.feed.list()
	counts, err := d.reader.read(ctx)
	s.Counts, s.Trouble = counts, ""
	d.inside.Store(int64(counts.Active))
	if err != nil {
		s.Trouble = "the admin API: " + err.Error()
	}
	if n%4 == 0 {
		var joined []string
		joined, s.Guests = d.guests.arrivals(time.Now())
		for _, text := range joined {
			d.feed.add(Line{At: time.Now(), Text: text})
		}
		if err == nil {
			d.meter.add(counts.Waiting, counts.Admitted)
		}
		own, err := d.site.Stats(ctx)
		if err != nil {
			s.Trouble = "the cinema: " + err.Error()
		} else if s.Booked, s.SeatsLeft = own.Bookings, own.PremiereLeft; own.PremiereLeft < onSale {
			if _, err := d.site.AddShowing(ctx); err != nil {
				s.Trouble = "the cinema: " + err.Error()
			} else {
				d.feed.add(Line{At: time.Now(), Text: "the cinema puts one more showing on sale"})
			}
		}
	}
	s.Rate, s.ETA, s.History = d.meter.rate(), d.meter.eta(), d.meter.waiting
}

func (d *demo) greet() {
	s := d.state
	fmt.Fprintf(d.t.Out, "usher demo: a cinema with %d visitors, of whom %d may be inside at once. Ctrl-C ends it.\n\n", d.opt.Visitors, d.opt.Active)
	fmt.Fprintf(d.t.Out, "  open this  %s   and wait in line with the crowd\n", s.Look)
	fmt.Fprintf(d.t.Out, "  the site   %s   behind the room, unprotected\n", s.Site)
	fmt.Fprintf(d.t.Out, "  dashboard  %s/   for operators; it asks for the token in\n", s.Admin)
	fmt.Fprintf(d.t.Out, "             %s\n", s.TokenFile)
	for _, n := range s.Notes {
		fmt.Fprintf(d.t.Out, "  note       %s\n", n)
	}
	fmt.Fprintln(d.t.Out)
}

func (d *demo) farewell(failed error) {
	s := d.state
	v := d.crowd.Stats().Violation
	fmt.Fprintf(d.t.Out, "\nAfter %s: %d entered, %d admitted with a limit of %d, %d seats sold, %d violations. ",
		clock(s.Elapsed), s.Counts.Entered, s.Counts.Admitted, s.Counts.Limit, s.Booked, v.Sum())
	if failed == nil {
		fmt.Fprint(d.t.Out, "The demo's files are removed.")
	}
	fmt.Fprintln(d.t.Out)
	if v.Sum() > 0 {
		fmt.Fprintf(d.t.Err, "The crowd saw what a room must never do: %+v\n", v)
	}
}
