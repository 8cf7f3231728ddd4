package cinema

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"time"
)

// Options says how a [Site] behaves. The zero value of every field is usable.
type Options struct {
	// Conns is the size of the database pool; 4 if zero. It is the scarce thing
	// of this site: raise it and the site takes more, until SQLite's single
	// writer is the limit.
	Conns int
	// Wait is how long a request may wait for the database in all before it is
	// answered 503; 2 s if zero.
	Wait time.Duration
	// Work is how long a purchase keeps its connection beyond what SQLite needs,
	// as a slow payment provider would; none if zero. It is never spent inside a
	// transaction.
	Work time.Duration
	// Hold is how long a chosen seat stays reserved before it is paid; 5 min if zero.
	Hold time.Duration
	// Inside tells how many people are inside, for the foot of each page, where
	// somebody knows better than the site itself: a waiting room does. The site's own
	// count, everybody seen within the last minute, if nil. Called on each page view.
	Inside func() int
	// Now is the clock; [time.Now] if nil. It must be safe for concurrent use.
	Now func() time.Time
	// Log gets failures, never a visitor's secret; discarded if nil.
	Log *slog.Logger
}

//go:embed page/*.html page/style.css
var pageFiles embed.FS

// Site is the booking site. It is an [http.Handler], safe for concurrent use.
type Site struct {
	opt    Options
	db     *store
	tmpl   *template.Template
	css    template.CSS
	csp    string
	inside *inside
	mux    http.Handler
}

// Open opens the site on the SQLite file at path, makes its tables, and adds
// films and tonight's showings if none lie ahead. The folder must exist. The
// caller closes the site.
func Open(ctx context.Context, path string, opt Options) (*Site, error) {
	if opt.Conns <= 0 {
		opt.Conns = 4
	}
	if opt.Wait <= 0 {
		opt.Wait = 2 * time.Second
	}
	if opt.Hold <= 0 {
		opt.Hold = 5 * time.Minute
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	css, err := pageFiles.ReadFile("page/style.css")
	if err != nil {
		return nil, err
	}
	tmpl, err := template.New("").ParseFS(pageFiles, "page/*.html")
	if err != nil {
		return nil, fmt.Errorf("cinema: pages: %w", err)
	}
	db, err := openStore(ctx, path, opt.Conns)
	if err != nil {
		return nil, err
	}
	if err := db.seed(ctx, opt.Now()); err != nil {
		return nil, errors.Join(fmt.Errorf("cinema: first showings: %w", err), db.Close())
	}
	s := &Site{opt: opt, db: db, tmpl: tmpl, css: template.CSS(css), inside: newInside()}
	sum := sha256.Sum256(css)
	s.csp = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	s.mux = s.routes()
	return s, nil
}

// Close closes the database. Requests still running fail.
func (s *Site) Close() error { return s.db.Close() }

// ServeHTTP answers one request.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Stats is what the site knows of itself at one moment.
type Stats struct {
	Bookings     int   // seats paid for, since the file was made
	SeatsLeft    int   // seats of showings ahead that are neither paid for nor held
	PremiereLeft int   // of these, the premiere's
	Inside       int   // people seen within the last minute who have not finished a purchase; or what Options.Inside says
	ConnsUsed    int   // connections in use now
	Conns        int   // size of the pool
	Waited       int64 // times a request waited for a connection
}

// Stats counts bookings and people.
func (s *Site) Stats(ctx context.Context) (Stats, error) {
	now := s.opt.Now()
	booked, left, err := s.db.totals(ctx, "", now)
	if err != nil {
		return Stats{}, err
	}
	_, premiere, err := s.db.totals(ctx, premiereSlug, now)
	if err != nil {
		return Stats{}, err
	}
	p := s.db.Stats()
	return Stats{Bookings: booked, SeatsLeft: left, PremiereLeft: premiere, Inside: s.countInside(now),
		ConnsUsed: p.InUse, Conns: p.MaxOpenConnections, Waited: p.WaitCount}, nil
}

func (s *Site) countInside(now time.Time) int {
	if s.opt.Inside != nil {
		return s.opt.Inside()
	}
	return s.inside.count(now)
}

// AddShowing puts one more showing of the premiere on sale, as a house does when
// the night sells out, and returns its id. It follows the last one by 30 min.
func (s *Site) AddShowing(ctx context.Context) (int64, error) {
	return s.db.addShowing(ctx, premiereSlug, s.opt.Now())
}
