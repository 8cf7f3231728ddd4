// Package sqlsink keeps a keeper's messages in SQLite, PostgreSQL, MariaDB or MySQL: one row a message, each once.
//
// Two tables, made where they do not exist: usher_messages (connection, seq, fence, at_ms, is_binary, data) with the key
// (connection, seq), and usher_fences (connection, fence). The fence is compared in the transaction that writes the
// messages, with its row locked: once a higher one is there, nothing of a lower one is written.
package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"

	"github.com/ushergo/usher/keeper"
)

// Sink is a database. Safe for concurrent use.
type Sink struct {
	db      *sql.DB
	dialect dialect
}

var _ keeper.Sink = (*Sink)(nil)

type dialect int

const (
	lite dialect = iota
	postgres
	maria
)

// Open opens a database and makes its tables; conns bounds its connections (default 4, which is a keeper's lanes; SQLite has
// one). Errors do not show passwords.
//
//	sqlite:messages.db                                     a file; several processes of one machine may share it
//	postgres://user:password@127.0.0.1:5432/feed           PostgreSQL
//	mysql:user:password@tcp(127.0.0.1:3306)/feed           MariaDB, MySQL
func Open(ctx context.Context, dsn string, conns int) (*Sink, error) {
	s, err := open(dsn)
	if err != nil {
		return nil, err
	}
	if conns <= 0 {
		conns = 4
	}
	if s.dialect == lite {
		conns = 1 // it has one writer
	}
	s.db.SetMaxOpenConns(conns)
	s.db.SetMaxIdleConns(conns)
	s.db.SetConnMaxIdleTime(5 * time.Minute)
	if err := s.tables(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the sink's tables cannot be made in %s: %w", Redacted(dsn), err), s.db.Close())
	}
	return s, nil
}

func open(dsn string) (*Sink, error) {
	switch kind, rest, _ := strings.Cut(dsn, ":"); kind {
	case "sqlite":
		if rest == "" {
			return nil, errors.New("sink: sqlite: names no file; write sqlite:messages.db")
		}
		db, err := sql.Open("sqlite", "file:"+rest+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)&_txlock=immediate")
		return &Sink{db, lite}, err
	case "mysql":
		cfg, err := mysql.ParseDSN(rest)
		if err != nil {
			return nil, fmt.Errorf("sink %s: %w", Redacted(dsn), err)
		}
		cfg.InterpolateParams = true // one round trip instead of two
		c, err := mysql.NewConnector(cfg)
		if err != nil {
			return nil, fmt.Errorf("sink %s: %w", Redacted(dsn), err)
		}
		return &Sink{sql.OpenDB(c), maria}, nil
	case "postgres", "postgresql":
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, fmt.Errorf("sink %s: the address cannot be read; write postgres://user:password@host:5432/database", Redacted(dsn))
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // statements differ in length: none is prepared
		return &Sink{stdlib.OpenDB(*cfg), postgres}, nil
	}
	return nil, fmt.Errorf("sink %s: begin it with sqlite:, mysql: or postgres://", Redacted(dsn))
}

// Redacted is a DSN without what may be a secret.
func Redacted(dsn string) string {
	kind, rest, _ := strings.Cut(dsn, ":")
	if kind == "sqlite" {
		return dsn
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = "…" + rest[i:]
	}
	rest, _, _ = strings.Cut(rest, "?")
	return kind + ":" + rest
}

// DB is the database, for those who read what is stored.
func (s *Sink) DB() *sql.DB { return s.db }

// Close closes the connections.
func (s *Sink) Close() error { return s.db.Close() }

func (s *Sink) tables(ctx context.Context) error {
	id, data := "TEXT", "BLOB"
	switch s.dialect {
	case postgres:
		id, data = `VARCHAR(256) COLLATE "C"`, "BYTEA"
	case maria:
		id, data = "VARCHAR(256) CHARACTER SET ascii COLLATE ascii_bin", "LONGBLOB"
	}
	for _, q := range []string{
		"CREATE TABLE IF NOT EXISTS usher_fences (connection " + id + " NOT NULL PRIMARY KEY, fence BIGINT NOT NULL)",
		"CREATE TABLE IF NOT EXISTS usher_messages (connection " + id + " NOT NULL, seq BIGINT NOT NULL, fence BIGINT NOT NULL, " +
			"at_ms BIGINT NOT NULL, is_binary SMALLINT NOT NULL, data " + data + " NOT NULL, PRIMARY KEY (connection, seq))",
	} {
		if err := s.table(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// table is tried again: on PostgreSQL two that make a table at the same moment get in each other's way.
func (s *Sink) table(ctx context.Context, q string) error {
	for try := 0; ; try++ {
		_, err := s.db.ExecContext(ctx, q)
		var pg *pgconn.PgError
		if err == nil || try == 10 || !(errors.As(err, &pg) && (pg.Code == "23505" || pg.Code == "42P07")) {
			return err
		}
	}
}

// Store implements keeper.Sink.
func (s *Sink) Store(ctx context.Context, batches []keeper.Batch) ([]bool, error) {
	order := make([]int, len(batches)) // in the order of ids, so that two transactions lock rows in one order
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(batches[a].Connection, batches[b].Connection) })
	for try := 0; ; try++ {
		ok, err := s.try(ctx, batches, order)
		if err == nil || try == 3 || !again(err) || ctx.Err() != nil {
			return ok, err
		}
	}
}

// again: a deadlock, or a lock not got in time. The database has undone it.
func again(err error) bool {
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	var l *sqlite.Error
	switch {
	case errors.As(err, &my):
		return my.Number == 1213 || my.Number == 1205
	case errors.As(err, &pg):
		return pg.Code == "40001" || pg.Code == "40P01"
	case errors.As(err, &l):
		return l.Code()&0xff == 5 // SQLITE_BUSY
	}
	return false
}

func (s *Sink) try(ctx context.Context, batches []keeper.Batch, order []int) ([]bool, error) {
	var opts *sql.TxOptions
	if s.dialect != lite {
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted} // no locks on gaps
	}
	tx, err := s.db.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	fences, err := s.fences(ctx, tx, batches, order)
	if err != nil {
		return nil, err
	}
	ok := make([]bool, len(batches))
	w := writer{s: s, tx: tx, ctx: ctx}
	for _, i := range order {
		b := batches[i]
		if ok[i] = b.Fence >= fences[b.Connection]; !ok[i] {
			continue
		}
		for _, m := range b.Messages {
			if err := w.add(b, m); err != nil {
				return nil, err
			}
		}
	}
	if err := w.flush(); err != nil {
		return nil, err
	}
	return ok, tx.Commit()
}

// fences raises the connections' fences to those of the batches, and gives what they are then, locked.
func (s *Sink) fences(ctx context.Context, tx *sql.Tx, batches []keeper.Batch, order []int) (map[string]uint64, error) {
	wanted := map[string]uint64{}
	var ids []string
	for _, i := range order {
		b := batches[i]
		if _, there := wanted[b.Connection]; !there {
			ids = append(ids, b.Connection)
		}
		wanted[b.Connection] = max(wanted[b.Connection], b.Fence)
	}
	have := map[string]uint64{}
	for range 2 {
		if err := s.lock(ctx, tx, ids, have); err != nil {
			return nil, err
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { f, there := have[id]; return there && f >= wanted[id] })
		if len(ids) == 0 {
			return have, nil
		}
		if err := s.raise(ctx, tx, ids, wanted); err != nil {
			return nil, err
		}
	}
	return have, s.lock(ctx, tx, ids, have)
}

func (s *Sink) lock(ctx context.Context, tx *sql.Tx, ids []string, have map[string]uint64) error {
	suffix := map[dialect]string{postgres: " FOR SHARE", maria: " LOCK IN SHARE MODE"}[s.dialect]
	for part := range slices.Chunk(ids, 500) {
		args := make([]any, len(part))
		for i, id := range part {
			args[i] = id
		}
		q := "SELECT connection, fence FROM usher_fences WHERE connection IN (?" + strings.Repeat(",?", len(part)-1) + ") ORDER BY connection" + suffix
		rows, err := tx.QueryContext(ctx, s.q(q), args...)
		if err != nil {
			return err
		}
		for rows.Next() {
			var id string
			var fence int64
			if err := rows.Scan(&id, &fence); err != nil {
				_ = rows.Close()
				return err
			}
			have[id] = uint64(fence)
		}
		if err := rows.Close(); err != nil {
			return err
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sink) raise(ctx context.Context, tx *sql.Tx, ids []string, wanted map[string]uint64) error {
	suffix := map[dialect]string{
		lite:     " ON CONFLICT (connection) DO UPDATE SET fence = MAX(usher_fences.fence, excluded.fence)",
		postgres: " ON CONFLICT (connection) DO UPDATE SET fence = GREATEST(usher_fences.fence, excluded.fence)",
		maria:    " ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))",
	}[s.dialect]
	for part := range slices.Chunk(ids, 500) {
		args := make([]any, 0, 2*len(part))
		for _, id := range part {
			args = append(args, id, int64(wanted[id]))
		}
		q := "INSERT INTO usher_fences (connection, fence) VALUES (?,?)" + strings.Repeat(",(?,?)", len(part)-1) + suffix
		if _, err := tx.ExecContext(ctx, s.q(q), args...); err != nil {
			return err
		}
	}
	return nil
}

// q writes ? as the database wants its parameters.
func (s *Sink) q(query string) string {
	if s.dialect != postgres {
		return query
	}
	var b strings.Builder
	n := 0
	for part := range strings.SplitSeq(query, "?") {
		if n > 0 {
			b.WriteString("$" + strconv.Itoa(n))
		}
		b.WriteString(part)
		n++
	}
	return b.String()
}

// writer gathers rows into statements that no server finds too long.
type writer struct {
	s     *Sink
	tx    *sql.Tx
	ctx   context.Context
	args  []any
	bytes int
}

const (
	maxRows  = 500
	maxBytes = 4 << 20
)

func (w *writer) add(b keeper.Batch, m keeper.Message) error {
	data := m.Data
	if data == nil {
		data = []byte{} // NULL would be refused
	}
	bin := 0
	if m.Binary {
		bin = 1
	}
	w.args = append(w.args, b.Connection, m.Seq, int64(b.Fence), m.At.UnixMilli(), bin, data)
	if w.bytes += len(data); len(w.args) >= 6*maxRows || w.bytes >= maxBytes {
		return w.flush()
	}
	return nil
}

func (w *writer) flush() error {
	if len(w.args) == 0 {
		return nil
	}
	suffix := " ON CONFLICT (connection, seq) DO NOTHING"
	if w.s.dialect == maria {
		suffix = " ON DUPLICATE KEY UPDATE seq = seq" // unlike INSERT IGNORE it hides no other fault
	}
	q := "INSERT INTO usher_messages (connection, seq, fence, at_ms, is_binary, data) VALUES (?,?,?,?,?,?)" +
		strings.Repeat(",(?,?,?,?,?,?)", len(w.args)/6-1) + suffix
	_, err := w.tx.ExecContext(w.ctx, w.s.q(q), w.args...)
	w.args, w.bytes = w.args[:0], 0
	return err
}
