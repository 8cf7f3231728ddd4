// Package sqltable writes events into a table of PostgreSQL, MySQL or MariaDB, or SQLite, each once.
//
// Promise: a batch is one transaction, and an event is taken when it is committed. An event that is there already is taken
// and changes nothing, so the table has each event once, whatever is sent twice. A second table holds the fence of each relay
// and partition: what an owner sends that has lost the partition is refused (relay.Fenced). Rows of one key are committed in
// the order of the source; n grows with them, late ones aside.
package sqltable

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx
	_ "modernc.org/sqlite"             // driver sqlite

	"github.com/ushergo/usher/relay"
)

// Kind is a kind of database.
type Kind string

const (
	Postgres Kind = "postgres"
	MySQL    Kind = "mysql" // and MariaDB
	SQLite   Kind = "sqlite"
)

// Sink is a table. It implements relay.Sink.
type Sink struct {
	db    *sql.DB
	d     dialect
	table string

	making sync.Mutex
	made   bool
}

var _ relay.Sink = (*Sink)(nil)

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,50}$`)

// Open makes a sink of a table, which is made when it is first written to. dsn is a URL for Postgres, as
// user:password@tcp(host:3306)/database for MySQL, a file's path for SQLite. Nothing is connected to yet.
func Open(kind Kind, dsn, table string) (*Sink, error) {
	if !tableName.MatchString(table) {
		return nil, fmt.Errorf("relay: table %q: letters, digits and _, at most 51", table)
	}
	d, err := dialectOf(kind)
	if err != nil {
		return nil, err
	}
	switch kind {
	case MySQL:
		conf, err := mysql.ParseDSN(dsn)
		if err != nil {
			return nil, errors.New("relay: the dsn is not one of mysql's: write user:password@tcp(host:3306)/database") // err may quote the password
		}
		conf.ParseTime, conf.Loc = true, time.UTC
		conf.Params = with(conf.Params, "time_zone", "'+00:00'")
		dsn = conf.FormatDSN()
	case SQLite:
		dsn = "file:" + strings.TrimPrefix(dsn, "file:") + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"
	}
	db, err := sql.Open(d.driver, dsn)
	if err != nil {
		return nil, errors.New("relay: the dsn cannot be read") // err may quote the password
	}
	db.SetMaxOpenConns(16)
	if kind == SQLite {
		db.SetMaxOpenConns(1)
	}
	db.SetConnMaxIdleTime(time.Minute)
	return &Sink{db: db, d: d, table: table}, nil
}

func with(params map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range params {
		out[k] = v
	}
	return out
}

// Limits implements relay.Sink.
func (s *Sink) Limits() relay.Limits {
	return relay.Limits{Events: 500, Bytes: 4 << 20, EventBytes: 4 << 20}
}

// Close implements relay.Sink.
func (s *Sink) Close() error { return s.db.Close() }

// Send implements relay.Sink.
func (s *Sink) Send(ctx context.Context, b relay.Batch) []error {
	if err := s.make(ctx); err != nil {
		return relay.All(len(b.Events), s.classed(err))
	}
	errs := make([]error, len(b.Events))
	good, at := b, []int(nil)
	good.Events = nil
	for i, e := range b.Events {
		if errs[i] = fits(&e); errs[i] == nil {
			good.Events, at = append(good.Events, e), append(at, i)
		}
	}
	for k, err := range s.store(ctx, good) {
		errs[at[k]] = err
	}
	return errs
}

// fits refuses what no column takes.
func fits(e *relay.Event) error {
	switch {
	case len(e.ID) > 255 || len(e.Key) > 255 || len(e.Type) > 64:
		return relay.Errorf(relay.Rejected, "id or key is longer than 255 bytes, or type than 64")
	case !utf8.Valid(e.Payload) || bytes.IndexByte(e.Payload, 0) >= 0:
		return relay.Errorf(relay.Rejected, "the payload is not text")
	}
	return nil
}

// store writes a batch; if the database refuses it because of what is in it, each event by itself.
func (s *Sink) store(ctx context.Context, b relay.Batch) []error {
	if len(b.Events) == 0 {
		return nil
	}
	err := s.classed(s.transact(ctx, b))
	if err == nil || len(b.Events) == 1 || relay.ClassOf(err) != relay.Rejected {
		return relay.All(len(b.Events), err)
	}
	errs := make([]error, len(b.Events))
	for i := range b.Events {
		one := b
		one.Events = b.Events[i : i+1]
		errs[i] = s.classed(s.transact(ctx, one))
	}
	return errs
}

func (s *Sink) transact(ctx context.Context, b relay.Batch) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if b.Fence != 0 {
		if err := s.fence(ctx, tx, b); err != nil {
			return err
		}
	}
	if err := s.insert(ctx, tx, b); err != nil {
		return err
	}
	return tx.Commit()
}

// fence holds the row of the relay's partition until the end of the transaction, and refuses an owner that is not the last.
func (s *Sink) fence(ctx context.Context, tx *sql.Tx, b relay.Batch) error {
	var seen int64
	err := tx.QueryRowContext(ctx, s.sql(`SELECT fence FROM {table}_fence WHERE relay = ? AND part = ? {share}`), b.Relay, b.Partition).Scan(&seen)
	switch {
	case err == nil && uint64(seen) > b.Fence:
		return relay.Errorf(relay.Fenced, "fence %d, and the table has seen %d", b.Fence, seen)
	case err == nil && uint64(seen) == b.Fence:
		return nil
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return err
	}
	// Whoever is first of two owners, the greater stays, and the smaller sees it below.
	if _, err := tx.ExecContext(ctx, s.sql(s.d.raise), b.Relay, b.Partition, int64(b.Fence)); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, s.sql(`SELECT fence FROM {table}_fence WHERE relay = ? AND part = ?`), b.Relay, b.Partition).Scan(&seen); err != nil {
		return err
	}
	if uint64(seen) != b.Fence {
		return relay.Errorf(relay.Fenced, "fence %d, and the table has seen %d", b.Fence, seen)
	}
	return nil
}

func (s *Sink) insert(ctx context.Context, tx *sql.Tx, b relay.Batch) error {
	var q strings.Builder
	q.WriteString(`INSERT INTO {table} (id, event_key, type, at, late, relay, payload) VALUES `)
	args := make([]any, 0, 7*len(b.Events))
	for i, e := range b.Events {
		if i > 0 {
			q.WriteString(", ")
		}
		q.WriteString("(?, ?, ?, ?, ?, ?, ?)")
		args = append(args, e.ID, e.Key, e.Type, s.d.time(e.At.UTC()), e.Late, b.Relay, string(e.Payload))
	}
	q.WriteString(s.d.twice)
	_, err := tx.ExecContext(ctx, s.sql(q.String()), args...)
	return err
}

// make makes the tables, once.
func (s *Sink) make(ctx context.Context) error {
	s.making.Lock()
	defer s.making.Unlock()
	if s.made {
		return nil
	}
	for _, q := range s.d.create {
		if _, err := s.db.ExecContext(ctx, s.sql(q)); err != nil {
			return err
		}
	}
	s.made = true
	return nil
}

// sql puts in the table's name, which is no value that somebody could choose freely, and the dialect's words.
func (s *Sink) sql(q string) string {
	q = strings.ReplaceAll(strings.ReplaceAll(q, "{table}", s.table), "{share}", s.d.share)
	if !s.d.dollars {
		return q
	}
	var out strings.Builder
	for n := 0; ; {
		before, after, found := strings.Cut(q, "?")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		n++
		fmt.Fprintf(&out, "$%d", n)
		q = after
	}
}
