package cinema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the "sqlite" driver
)

var (
	errNoSuch  = errors.New("cinema: no such film, showing or booking")
	errTaken   = errors.New("cinema: the seat is taken")
	errSoldOut = errors.New("cinema: the showing is sold out")
	errRanOut  = errors.New("cinema: the hold ran out")
	errStarted = errors.New("cinema: the showing has begun")
)

// A hall is the same everywhere: ten rows of twelve.
const (
	hallRows = 10
	hallCols = 12
	hallSize = hallRows * hallCols
)

// claims holds both holds and bookings: one row, one seat, one owner. A hold
// whose time is over is as good as no row, and is replaced in the same write
// that takes the seat.
const schema = `
CREATE TABLE IF NOT EXISTS films (
	slug TEXT PRIMARY KEY, ord INTEGER NOT NULL, premiere INTEGER NOT NULL, minutes INTEGER NOT NULL, age INTEGER NOT NULL,
	title_en TEXT NOT NULL, title_ko TEXT NOT NULL, line_en TEXT NOT NULL, line_ko TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS showings (
	id INTEGER PRIMARY KEY AUTOINCREMENT, film TEXT NOT NULL REFERENCES films(slug),
	hall INTEGER NOT NULL, starts INTEGER NOT NULL, price INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS showings_by_film ON showings(film, starts);
CREATE TABLE IF NOT EXISTS claims (
	showing INTEGER NOT NULL REFERENCES showings(id), seat TEXT NOT NULL, owner TEXT NOT NULL,
	held_until INTEGER NOT NULL, booked_at INTEGER, code TEXT UNIQUE, ticket TEXT NOT NULL DEFAULT '',
	PRIMARY KEY (showing, seat)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claims_by_owner ON claims(owner);`

type store struct{ *sql.DB }

func openStore(ctx context.Context, path string, conns int) (*store, error) {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(NORMAL)", "foreign_keys(1)"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("cinema: database %s: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(fmt.Errorf("cinema: database %s (is the folder there and writable?): %w", path, err), db.Close())
	}
	return &store{db}, nil
}

type film struct {
	Slug             string
	Premiere         bool
	Minutes, Age     int
	TitleEn, TitleKo string
	LineEn, LineKo   string
}

// Path is where the film's pages live. The premiere has one path and no alias,
// so that a rule for /premiere covers all of it.
func (f film) Path() string {
	if f.Premiere {
		return "/premiere"
	}
	return "/films/" + f.Slug
}

type showing struct {
	ID     int64
	Film   string
	Hall   int
	Starts time.Time
	Price  int
	Gone   int // seats paid for or held
}

func (s showing) Left() int     { return max(0, hallSize-s.Gone) }
func (s showing) SoldOut() bool { return s.Left() == 0 }

type booking struct {
	Code, Seat, Ticket string
	Showing            showing
	Film               film
	At                 time.Time
}

const filmCols = `slug, premiere, minutes, age, title_en, title_ko, line_en, line_ko`

func scanFilm(row interface{ Scan(...any) error }) (f film, err error) {
	err = row.Scan(&f.Slug, &f.Premiere, &f.Minutes, &f.Age, &f.TitleEn, &f.TitleKo, &f.LineEn, &f.LineKo)
	return f, noRows(err)
}

func noRows(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return errNoSuch
	}
	return err
}

func (s *store) films(ctx context.Context) ([]film, error) {
	rows, err := s.QueryContext(ctx, `SELECT `+filmCols+` FROM films ORDER BY premiere DESC, ord`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []film
	for rows.Next() {
		f, err := scanFilm(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, rows.Err()
}

// film finds a film by slug, or the premiere if slug is empty.
func (s *store) film(ctx context.Context, slug string) (film, error) {
	if slug == "" {
		return scanFilm(s.QueryRowContext(ctx, `SELECT `+filmCols+` FROM films WHERE premiere LIMIT 1`))
	}
	return scanFilm(s.QueryRowContext(ctx, `SELECT `+filmCols+` FROM films WHERE slug = ?`, slug))
}

const showingSelect = `SELECT s.id, s.film, s.hall, s.starts, s.price,
	(SELECT count(*) FROM claims c WHERE c.showing = s.id AND (c.booked_at IS NOT NULL OR c.held_until > ?))
	FROM showings s `

func scanShowing(row interface{ Scan(...any) error }) (sh showing, err error) {
	var starts int64
	err = row.Scan(&sh.ID, &sh.Film, &sh.Hall, &starts, &sh.Price, &sh.Gone)
	sh.Starts = time.UnixMilli(starts)
	return sh, noRows(err)
}

// showings lists a film's showings ahead: all with seats left, and the newest
// three that are sold out. hidden is how many sold-out ones were left off.
func (s *store) showings(ctx context.Context, film string, now time.Time) (list []showing, hidden int, err error) {
	rows, err := s.QueryContext(ctx, showingSelect+`WHERE s.film = ? AND s.starts > ? ORDER BY s.starts DESC`,
		now.UnixMilli(), film, now.UnixMilli())
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	soldOut := 0
	for rows.Next() {
		sh, err := scanShowing(rows)
		if err != nil {
			return nil, 0, err
		}
		if sh.SoldOut() {
			if soldOut++; soldOut > 3 {
				hidden++
				continue
			}
		}
		list = append(list, sh)
	}
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list, hidden, rows.Err()
}

func (s *store) showing(ctx context.Context, id int64, now time.Time) (showing, error) {
	return scanShowing(s.QueryRowContext(ctx, showingSelect+`WHERE s.id = ?`, now.UnixMilli(), id))
}

// taken lists the seats of a showing that others cannot have.
func (s *store) taken(ctx context.Context, id int64, owner string, now time.Time) (gone map[string]bool, mine string, err error) {
	rows, err := s.QueryContext(ctx, `SELECT seat, owner = ? AND booked_at IS NULL FROM claims
		WHERE showing = ? AND (booked_at IS NOT NULL OR held_until > ?)`, owner, id, now.UnixMilli())
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	gone = make(map[string]bool, hallSize)
	for rows.Next() {
		var seat string
		var own bool
		if err := rows.Scan(&seat, &own); err != nil {
			return nil, "", err
		}
		if own {
			mine = seat
		} else {
			gone[seat] = true
		}
	}
	return gone, mine, rows.Err()
}

// hold reserves a seat for owner. One statement decides: the primary key lets
// one row in, and only a row whose hold is over, or the owner's own, is replaced.
// Any other hold of the same owner for this showing is given up in the same
// transaction, so that nobody collects seats by choosing again.
func (s *store) hold(ctx context.Context, id int64, seat, owner string, now, until time.Time) error {
	tx, err := s.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after Commit it does nothing
	res, err := tx.ExecContext(ctx, `INSERT INTO claims (showing, seat, owner, held_until)
		SELECT id, ?, ?, ? FROM showings WHERE id = ? AND starts > ?
		ON CONFLICT (showing, seat) DO UPDATE SET owner = excluded.owner, held_until = excluded.held_until
		WHERE claims.booked_at IS NULL AND (claims.held_until <= ? OR claims.owner = excluded.owner)`,
		seat, owner, until.UnixMilli(), id, now.UnixMilli(), now.UnixMilli())
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return s.whyNot(ctx, tx, id, now)
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM claims WHERE showing = ? AND owner = ? AND seat <> ? AND booked_at IS NULL`,
		id, owner, seat); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *store) whyNot(ctx context.Context, tx *sql.Tx, id int64, now time.Time) error {
	sh, err := scanShowing(tx.QueryRowContext(ctx, showingSelect+`WHERE s.id = ?`, now.UnixMilli(), id))
	switch {
	case err != nil:
		return err
	case !sh.Starts.After(now):
		return errStarted
	case sh.SoldOut():
		return errSoldOut
	}
	return errTaken
}

// release gives up the owner's hold, if any.
func (s *store) release(ctx context.Context, id int64, owner string) error {
	_, err := s.ExecContext(ctx, `DELETE FROM claims WHERE showing = ? AND owner = ? AND booked_at IS NULL`, id, owner)
	return err
}

// held tells which seat the owner holds, and until when.
func (s *store) held(ctx context.Context, id int64, owner string, now time.Time) (seat string, until time.Time, err error) {
	var ms int64
	err = s.QueryRowContext(ctx, `SELECT seat, held_until FROM claims
		WHERE showing = ? AND owner = ? AND booked_at IS NULL AND held_until > ?`, id, owner, now.UnixMilli()).Scan(&seat, &ms)
	return seat, time.UnixMilli(ms), noRows(err)
}

// book turns the owner's hold on seat into a booking and returns its code. Asked
// again for a seat that the owner has already booked, it returns the first code:
// a purchase whose answer was lost is safe to repeat.
func (s *store) book(ctx context.Context, id int64, seat, owner, code, ticket string, now time.Time) (string, error) {
	var got string
	err := s.QueryRowContext(ctx, `UPDATE claims SET booked_at = coalesce(booked_at, ?), code = coalesce(code, ?),
		ticket = CASE WHEN booked_at IS NULL THEN ? ELSE ticket END
		WHERE showing = ? AND seat = ? AND owner = ? AND (booked_at IS NOT NULL OR held_until > ?) RETURNING code`,
		now.UnixMilli(), code, ticket, id, seat, owner, now.UnixMilli()).Scan(&got)
	if errors.Is(err, sql.ErrNoRows) {
		return "", errRanOut
	}
	return got, err
}

// bookings lists what the owner bought, newest first; only that code if code is given.
func (s *store) bookings(ctx context.Context, owner, code string) ([]booking, error) {
	rows, err := s.QueryContext(ctx, `SELECT c.code, c.seat, c.ticket, c.booked_at, s.id, s.film, s.hall, s.starts, s.price,
		f.slug, f.premiere, f.minutes, f.age, f.title_en, f.title_ko, f.line_en, f.line_ko
		FROM claims c JOIN showings s ON s.id = c.showing JOIN films f ON f.slug = s.film
		WHERE c.owner = ? AND c.booked_at IS NOT NULL AND (? = '' OR c.code = ?) ORDER BY c.booked_at DESC LIMIT 100`, owner, code, code)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []booking
	for rows.Next() {
		var b booking
		var at, starts int64
		f := &b.Film
		if err := rows.Scan(&b.Code, &b.Seat, &b.Ticket, &at, &b.Showing.ID, &b.Showing.Film, &b.Showing.Hall, &starts, &b.Showing.Price,
			&f.Slug, &f.Premiere, &f.Minutes, &f.Age, &f.TitleEn, &f.TitleKo, &f.LineEn, &f.LineKo); err != nil {
			return nil, err
		}
		b.At, b.Showing.Starts = time.UnixMilli(at), time.UnixMilli(starts)
		out = append(out, b)
	}
	return out, rows.Err()
}

// totals counts seats booked in all, and seats left of the film's showings
// ahead; of all films if film is empty.
func (s *store) totals(ctx context.Context, film string, now time.Time) (booked, left int, err error) {
	ms := now.UnixMilli()
	err = s.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM claims WHERE booked_at IS NOT NULL),
		? * (SELECT count(*) FROM showings WHERE starts > ? AND (? = '' OR film = ?)) -
		(SELECT count(*) FROM claims c JOIN showings s ON s.id = c.showing
		 WHERE s.starts > ? AND (? = '' OR s.film = ?) AND (c.booked_at IS NOT NULL OR c.held_until > ?))`,
		hallSize, ms, film, film, ms, film, film, ms).Scan(&booked, &left)
	return booked, left, err
}
