package matching

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"modernc.org/sqlite"
)

// dialect is what databases say differently.
type dialect string

const (
	sqliteDB   dialect = "sqlite"
	mariaDB    dialect = "mysql"
	postgresDB dialect = "postgres"
)

// DB is a writer pool and, where one was given, a reader pool.
type DB struct {
	Writer, Reader *sql.DB // the same without a reader
	dialect        dialect
}

// Open opens a database and makes its tables:
//
//	sqlite:jobs.db                                         a file
//	mysql:user:password@tcp(127.0.0.1:3306)/jobs           MariaDB, MySQL
//	postgres://user:password@127.0.0.1:5432/jobs           PostgreSQL
//
// reader is a DSN of the same kind for reads that may be a little old, or "". conns bounds each pool; default 50.
func Open(ctx context.Context, writer, reader string, conns int) (*DB, error) {
	if conns <= 0 {
		conns = 50
	}
	w, kind, err := open(writer, conns, true)
	if err != nil {
		return nil, err
	}
	db := &DB{Writer: w, Reader: w, dialect: kind}
	if reader == "" && kind == sqliteDB { // readers do not wait for SQLite's one writer
		reader = writer
	}
	if reader != "" {
		r, rkind, err := open(reader, conns, false)
		if err == nil && rkind != kind {
			r.Close()
			err = fmt.Errorf("the reader is %s and the writer %s", rkind, kind)
		}
		if err != nil {
			w.Close()
			return nil, err
		}
		db.Reader = r
	}
	if err := db.migrate(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("the tables cannot be made: %w", err)
	}
	return db, nil
}

func open(dsn string, conns int, writes bool) (*sql.DB, dialect, error) {
	var kind dialect
	var db *sql.DB
	var err error
	switch {
	case strings.HasPrefix(dsn, "sqlite:"):
		kind = sqliteDB
		opts := "?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)"
		if writes {
			opts, conns = opts+"&_txlock=immediate", 1
		}
		db, err = sql.Open("sqlite", "file:"+strings.TrimPrefix(dsn, "sqlite:")+opts)
	case strings.HasPrefix(dsn, "mysql:"):
		kind = mariaDB
		var cfg *mysql.Config
		if cfg, err = mysql.ParseDSN(strings.TrimPrefix(dsn, "mysql:")); err == nil {
			cfg.InterpolateParams = true // one round trip instead of two
			db, err = sql.Open("mysql", cfg.FormatDSN())
		}
	case strings.HasPrefix(dsn, "postgres://"), strings.HasPrefix(dsn, "postgresql://"):
		kind = postgresDB
		db, err = sql.Open("pgx", dsn)
	default:
		return nil, "", fmt.Errorf("database %q: begin it with sqlite:, mysql: or postgres://", redacted(dsn))
	}
	if err != nil {
		return nil, "", fmt.Errorf("database %q: %w", redacted(dsn), err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, kind, nil
}

// redacted keeps passwords out of messages.
func redacted(dsn string) string {
	kind, rest, _ := strings.Cut(dsn, ":")
	if _, host, ok := strings.Cut(rest, "@"); ok {
		return kind + ":…@" + host
	}
	return dsn
}

// Close closes both pools.
func (db *DB) Close() error {
	err := db.Writer.Close()
	if db.Reader != db.Writer {
		err = errors.Join(err, db.Reader.Close())
	}
	return err
}

// Ready is nil when writer and reader answer.
func (db *DB) Ready(ctx context.Context) error {
	if err := db.Writer.PingContext(ctx); err != nil {
		return fmt.Errorf("writer: %w", err)
	}
	if err := db.Reader.PingContext(ctx); err != nil {
		return fmt.Errorf("reader: %w", err)
	}
	return nil
}

func (db *DB) migrate(ctx context.Context) error {
	for _, q := range []string{
		`CREATE TABLE IF NOT EXISTS jobs (
			id BIGINT PRIMARY KEY, title VARCHAR(200) NOT NULL, status VARCHAR(16) NOT NULL,
			places INT NOT NULL, taken INT NOT NULL, applications BIGINT NOT NULL, fence BIGINT NOT NULL, winner BIGINT NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS acceptances (
			job_id BIGINT NOT NULL, freelancer_id BIGINT NOT NULL, fence BIGINT NOT NULL, at_ms BIGINT NOT NULL,
			PRIMARY KEY (job_id, freelancer_id))`,
	} {
		if _, err := db.Writer.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// q writes ? as the database wants its parameters.
func (db *DB) q(query string) string {
	if db.dialect != postgresDB {
		return query
	}
	var b strings.Builder
	n := 0
	for _, c := range query {
		if c == '?' {
			n++
			b.WriteString("$" + strconv.Itoa(n))
			continue
		}
		b.WriteRune(c)
	}
	return b.String()
}

// forUpdate locks the row that is read; SQLite's writer is alone anyway.
func (db *DB) forUpdate() string {
	if db.dialect == sqliteDB {
		return ""
	}
	return " FOR UPDATE"
}

// tx runs a transaction, again where the database gave it up for another's sake.
func (db *DB) tx(ctx context.Context, work func(*sql.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := db.once(ctx, work)
		if err == nil || attempt == 4 || !again(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(attempt*attempt) * 5 * time.Millisecond):
		}
	}
}

func (db *DB) once(ctx context.Context, work func(*sql.Tx) error) error {
	tx, err := db.Writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// again: a deadlock, a lock not got in time, a transaction that could not be put in order. The database has undone it.
func again(err error) bool {
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	var lite *sqlite.Error
	switch {
	case errors.As(err, &my):
		return my.Number == 1213 || my.Number == 1205 || my.Number == 1020
	case errors.As(err, &pg):
		return pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "55P03"
	case errors.As(err, &lite):
		return lite.Code()&0xff == 5 // SQLITE_BUSY
	}
	return false
}
