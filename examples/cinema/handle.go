package cinema

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	cookieName = "cinema"
	maxBody    = 4 << 10
)

var (
	seatShape   = regexp.MustCompile(`^[A-J](?:[1-9]|1[0-2])$`)
	ticketShape = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	cookieShape = regexp.MustCompile(`^[A-Z2-7]{32}$`)
	codeShape   = regexp.MustCompile(`^[A-Z2-7]{10}$`)
)

// who is the person behind one request.
type who struct {
	owner  string // hash of the cookie's secret; empty without a cookie
	ticket string // Usher's ticket id, if a proxy gave one
	lang   string
}

func (v who) key() string {
	if v.ticket != "" {
		return "t:" + v.ticket
	}
	return v.owner
}

type handler func(w http.ResponseWriter, r *http.Request, v who) error

func (s *Site) routes() http.Handler {
	mux := http.NewServeMux()
	get := func(path string, h handler) { mux.Handle("GET "+path, s.wrap(h)) }
	post := func(path string, h handler) { mux.Handle("POST "+path, s.wrap(h)) }
	get("/{$}", s.home)
	get("/bookings", s.myBookings)
	for _, base := range []string{"/premiere", "/films/{film}"} {
		get(base, s.filmPage)
		get(base+"/showings/{id}", s.seatMap)
		post(base+"/showings/{id}/hold", s.hold)
		get(base+"/showings/{id}/pay", s.payPage)
		post(base+"/showings/{id}/pay", s.pay)
		post(base+"/showings/{id}/release", s.release)
		get(base+"/thanks/{code}", s.thanks)
	}
	mux.HandleFunc("GET /health", s.health)
	mux.Handle("/", s.wrap(func(http.ResponseWriter, *http.Request, who) error { return errNoSuch }))

	guard := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.setHeaders(w)
		// Behind a proxy that rewrites Host, the browser's Origin is compared with the
		// host the visitor saw. No web page can make a browser send X-Forwarded-Host.
		seen := r
		if h := r.Header.Get("X-Forwarded-Host"); h != "" {
			seen = r.WithContext(r.Context())
			seen.Host = h
		}
		if err := guard.Check(seen); err != nil {
			s.fail(w, r, who{lang: language(r)}, http.StatusForbidden, "err.cross")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Site) setHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", s.csp)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Language, Cookie")
}

// wrap gives a handler its deadline, its visitor and its error page.
func (s *Site) wrap(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), s.opt.Wait)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		v := s.visitor(w, r)
		s.inside.saw(v.key(), s.opt.Now())
		err := h(w, r, v)
		switch {
		case err == nil:
		case errors.Is(err, errNoSuch):
			s.fail(w, r, v, http.StatusNotFound, "err.none")
		case errors.Is(err, errBadForm):
			s.fail(w, r, v, http.StatusBadRequest, "err.form")
		case ctx.Err() != nil || isBusy(err):
			w.Header().Set("Retry-After", "5")
			s.fail(w, r, v, http.StatusServiceUnavailable, "err.busy")
		default:
			s.opt.Log.Error("cinema: request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			s.fail(w, r, v, http.StatusInternalServerError, "err.ours")
		}
	})
}

var errBadForm = errors.New("cinema: the form is not one of ours")

// isBusy tells that SQLite gave up waiting for its writer.
func isBusy(err error) bool {
	var e interface{ Code() int }
	return errors.As(err, &e) && e.Code()&0xff == 5
}

// visitor reads the cookie, and gives one to whoever has none.
func (s *Site) visitor(w http.ResponseWriter, r *http.Request) who {
	v := who{lang: language(r)}
	if id := r.Header.Get("X-Usher-Ticket-Id"); ticketShape.MatchString(id) {
		v.ticket = id
	}
	secret := ""
	if c, err := r.Cookie(cookieName); err == nil && cookieShape.MatchString(c.Value) {
		secret = c.Value
	} else {
		secret = random(32)
		http.SetCookie(w, &http.Cookie{Name: cookieName, Value: secret, Path: "/", MaxAge: 30 * 24 * 3600, HttpOnly: true,
			SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")})
	}
	sum := sha256.Sum256([]byte(secret))
	v.owner = hex.EncodeToString(sum[:16])
	return v
}

// random gives n letters of base32, five bits each.
func random(n int) string {
	b := make([]byte, (n*5+7)/8)
	rand.Read(b) // never fails
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b)[:n]
}

// pick finds the film and, if the path names one, the showing.
func (s *Site) pick(r *http.Request) (f film, sh showing, err error) {
	f, err = s.db.film(r.Context(), r.PathValue("film"))
	if err != nil {
		return f, sh, err
	}
	if f.Premiere && r.PathValue("film") != "" {
		return f, sh, errNoSuch // no alias: it would slip past a room that matches /premiere
	}
	if raw := r.PathValue("id"); raw != "" {
		id, bad := strconv.ParseInt(raw, 10, 64)
		if bad != nil || strconv.FormatInt(id, 10) != raw {
			return f, sh, errNoSuch
		}
		if sh, err = s.db.showing(r.Context(), id, s.opt.Now()); err == nil && sh.Film != f.Slug {
			err = errNoSuch
		}
	}
	return f, sh, err
}

func (s *Site) home(w http.ResponseWriter, r *http.Request, v who) error {
	films, err := s.db.films(r.Context())
	if err != nil {
		return err
	}
	return s.render(w, v, http.StatusOK, "home", page{Films: films})
}

func (s *Site) filmPage(w http.ResponseWriter, r *http.Request, v who) error {
	f, _, err := s.pick(r)
	if err != nil {
		return err
	}
	list, hidden, err := s.db.showings(r.Context(), f.Slug, s.opt.Now())
	if err != nil {
		return err
	}
	return s.render(w, v, http.StatusOK, "film", page{Film: f, Showings: list, Hidden: hidden})
}

func (s *Site) seatMap(w http.ResponseWriter, r *http.Request, v who) error {
	return s.showSeats(w, r, v, http.StatusOK, "", "")
}

func (s *Site) showSeats(w http.ResponseWriter, r *http.Request, v who, code int, notice, seat string) error {
	f, sh, err := s.pick(r)
	if err != nil {
		return err
	}
	gone, mine, err := s.db.taken(r.Context(), sh.ID, v.owner, s.opt.Now())
	if err != nil {
		return err
	}
	sh.Gone = len(gone)
	if !sh.Starts.After(s.opt.Now()) {
		notice = "seat.begun"
	}
	return s.render(w, v, code, "seats", page{Film: f, Showing: sh, Rows: hall(gone, mine), Notice: notice, Seat: seat})
}

func (s *Site) hold(w http.ResponseWriter, r *http.Request, v who) error {
	_, sh, err := s.pick(r)
	if err != nil {
		return err
	}
	if err := r.ParseForm(); err != nil {
		return errBadForm
	}
	seat := r.PostForm.Get("seat")
	if seat == "" {
		return s.showSeats(w, r, v, http.StatusUnprocessableEntity, "seat.choose", "")
	}
	if !seatShape.MatchString(seat) {
		return errBadForm
	}
	now := s.opt.Now()
	switch err := s.db.hold(r.Context(), sh.ID, seat, v.owner, now, now.Add(s.opt.Hold)); {
	case errors.Is(err, errTaken):
		return s.showSeats(w, r, v, http.StatusConflict, "seat.taken", seat)
	case errors.Is(err, errSoldOut):
		return s.showSeats(w, r, v, http.StatusConflict, "seat.soldout", "")
	case errors.Is(err, errStarted):
		return s.showSeats(w, r, v, http.StatusConflict, "seat.begun", "")
	case err != nil:
		return err
	}
	redirect(w, showingPath(r)+"/pay")
	return nil
}

func (s *Site) payPage(w http.ResponseWriter, r *http.Request, v who) error {
	f, sh, err := s.pick(r)
	if err != nil {
		return err
	}
	now := s.opt.Now()
	seat, until, err := s.db.held(r.Context(), sh.ID, v.owner, now)
	if errors.Is(err, errNoSuch) {
		redirect(w, showingPath(r))
		return nil
	}
	if err != nil {
		return err
	}
	minutes := int((until.Sub(now) + time.Minute - 1) / time.Minute)
	return s.render(w, v, http.StatusOK, "pay", page{Film: f, Showing: sh, Seat: seat, Minutes: minutes})
}

func (s *Site) pay(w http.ResponseWriter, r *http.Request, v who) error {
	f, sh, err := s.pick(r)
	if err != nil {
		return err
	}
	if err := r.ParseForm(); err != nil || !seatShape.MatchString(r.PostForm.Get("seat")) {
		return errBadForm
	}
	if err := s.work(r.Context()); err != nil {
		return err
	}
	seat := r.PostForm.Get("seat")
	code, err := s.db.book(r.Context(), sh.ID, seat, v.owner, random(10), v.ticket, s.opt.Now())
	if errors.Is(err, errRanOut) {
		return s.showSeats(w, r, v, http.StatusConflict, "seat.ranout", seat)
	}
	if err != nil {
		return err
	}
	redirect(w, f.Path()+"/thanks/"+code)
	return nil
}

// work keeps one connection of the pool busy, and nothing else: no transaction
// is open, no lock is held.
func (s *Site) work(ctx context.Context) error {
	if s.opt.Work <= 0 {
		return nil
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	t := time.NewTimer(s.opt.Work)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Site) release(w http.ResponseWriter, r *http.Request, v who) error {
	_, sh, err := s.pick(r)
	if err != nil {
		return err
	}
	if err := s.db.release(r.Context(), sh.ID, v.owner); err != nil {
		return err
	}
	redirect(w, showingPath(r))
	return nil
}

// thanks confirms a purchase and ends the visitor's session in the waiting room.
// Another person's code, or a film's that is not this one, is no page at all.
func (s *Site) thanks(w http.ResponseWriter, r *http.Request, v who) error {
	f, _, err := s.pick(r)
	if err != nil {
		return err
	}
	code := r.PathValue("code")
	if !codeShape.MatchString(code) {
		return errNoSuch
	}
	list, err := s.db.bookings(r.Context(), v.owner, code)
	if err != nil {
		return err
	}
	if len(list) != 1 || list[0].Film.Slug != f.Slug {
		return errNoSuch
	}
	w.Header().Set("Usher-Session", "end")
	s.inside.gone(v.key())
	return s.render(w, v, http.StatusOK, "thanks", page{Film: f, Showing: list[0].Showing, Bookings: list})
}

func (s *Site) myBookings(w http.ResponseWriter, r *http.Request, v who) error {
	list, err := s.db.bookings(r.Context(), v.owner, "")
	if err != nil {
		return err
	}
	return s.render(w, v, http.StatusOK, "bookings", page{Bookings: list})
}

func (s *Site) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.opt.Wait)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := s.db.PingContext(ctx); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		w.Write([]byte("no database connection\n"))
		return
	}
	w.Write([]byte("ok\n"))
}

// showingPath is the path of the showing that r is about, whatever follows it.
func showingPath(r *http.Request) string {
	if f := r.PathValue("film"); f != "" {
		return "/films/" + f + "/showings/" + r.PathValue("id")
	}
	return "/premiere/showings/" + r.PathValue("id")
}

// redirect follows a form with a page. Every target is a path of ours: film and
// id have been found in the database before anybody is sent there.
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}
