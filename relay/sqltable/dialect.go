package sqltable

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/ushergo/usher/relay"
)

// dialect is what databases say differently.
type dialect struct {
	driver  string
	dollars bool     // parameters are $1, $2
	create  []string // the tables
	share   string   // locks a row that is read against changes
	twice   string   // an event that is there changes nothing
	raise   string   // the fence, if it is the greater one
	time    func(time.Time) any
	class   func(error) (relay.Class, bool)
}

func dialectOf(kind Kind) (dialect, error) {
	switch kind {
	case Postgres:
		return dialect{
			driver: "pgx", dollars: true, share: "FOR SHARE", twice: " ON CONFLICT (id) DO NOTHING", class: postgresClass,
			create: []string{
				`CREATE TABLE IF NOT EXISTS {table} (id VARCHAR(255) PRIMARY KEY, n BIGSERIAL, event_key VARCHAR(255) NOT NULL, type VARCHAR(64) NOT NULL,
				at TIMESTAMPTZ NOT NULL, late BOOLEAN NOT NULL, relay VARCHAR(64) NOT NULL, payload TEXT NOT NULL, taken_at TIMESTAMPTZ NOT NULL DEFAULT now())`,
				`CREATE TABLE IF NOT EXISTS {table}_fence (relay VARCHAR(64), part VARCHAR(128), fence BIGINT NOT NULL, PRIMARY KEY (relay, part))`,
			},
			raise: `INSERT INTO {table}_fence AS f (relay, part, fence) VALUES (?, ?, ?) ON CONFLICT (relay, part) DO UPDATE SET fence = GREATEST(f.fence, EXCLUDED.fence)`,
			time:  func(t time.Time) any { return t },
		}, nil
	case MySQL:
		return dialect{
			driver: "mysql", share: "LOCK IN SHARE MODE", twice: " ON DUPLICATE KEY UPDATE id = {table}.id", class: mysqlClass,
			create: []string{
				`CREATE TABLE IF NOT EXISTS {table} (id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, n BIGINT NOT NULL AUTO_INCREMENT UNIQUE,
				event_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, type VARCHAR(64) CHARACTER SET utf8mb4 NOT NULL, at DATETIME(6) NOT NULL,
				late BOOLEAN NOT NULL, relay VARCHAR(64) NOT NULL, payload LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
				taken_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)) ENGINE=InnoDB`,
				`CREATE TABLE IF NOT EXISTS {table}_fence (relay VARCHAR(64), part VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, fence BIGINT NOT NULL,
				PRIMARY KEY (relay, part)) ENGINE=InnoDB`,
			},
			raise: `INSERT INTO {table}_fence (relay, part, fence) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))`,
			time:  func(t time.Time) any { return t },
		}, nil
	case SQLite:
		return dialect{
			driver: "sqlite", twice: " ON CONFLICT (id) DO NOTHING", class: sqliteClass,
			create: []string{
				`CREATE TABLE IF NOT EXISTS {table} (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, event_key TEXT NOT NULL, type TEXT NOT NULL,
				at TEXT NOT NULL, late BOOLEAN NOT NULL, relay TEXT NOT NULL, payload TEXT NOT NULL, taken_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')))`,
				`CREATE TABLE IF NOT EXISTS {table}_fence (relay TEXT, part TEXT, fence INTEGER NOT NULL, PRIMARY KEY (relay, part))`,
			},
			raise: `INSERT INTO {table}_fence (relay, part, fence) VALUES (?, ?, ?) ON CONFLICT (relay, part) DO UPDATE SET fence = MAX(fence, excluded.fence)`,
			time:  func(t time.Time) any { return t.Format("2006-01-02T15:04:05.000000Z") },
		}, nil
	}
	return dialect{}, fmt.Errorf("relay: database %q: use postgres, mysql or sqlite", kind)
}

// classed says whose fault an error of the database is.
func (s *Sink) classed(err error) error {
	if err == nil {
		return nil
	}
	var have *relay.Error
	if errors.As(err, &have) {
		return err
	}
	if class, ok := s.d.class(err); ok {
		return relay.Classed(class, err)
	}
	return err // the connection's: tried again
}

func postgresClass(err error) (relay.Class, bool) {
	var p *pgconn.PgError
	if !errors.As(err, &p) {
		return 0, false
	}
	switch {
	case strings.HasPrefix(p.Code, "22"), strings.HasPrefix(p.Code, "23"): // data, constraints
		return relay.Rejected, true
	case strings.HasPrefix(p.Code, "28"), strings.HasPrefix(p.Code, "3D"), strings.HasPrefix(p.Code, "3F"), strings.HasPrefix(p.Code, "42"):
		// identity, no such database or schema, rights and columns
		return relay.Denied, p.Code != "42P07" // two who make the table at once
	case strings.HasPrefix(p.Code, "53"): // too many connections, disk full
		return relay.Throttled, true
	}
	return 0, false
}

func mysqlClass(err error) (relay.Class, bool) {
	var m *mysql.MySQLError
	if !errors.As(err, &m) {
		return 0, false
	}
	switch m.Number {
	case 1264, 1292, 1366, 1406, 1048, 1364, 3819, 4025, 1452: // data, constraints
		return relay.Rejected, true
	case 1044, 1045, 1049, 1142, 1143, 1146, 1054, 1136: // identity, rights, database, table, columns
		return relay.Denied, true
	case 1040, 1203, 1114, 1021: // too many connections, table or disk full
		return relay.Throttled, true
	}
	return 0, false
}

func sqliteClass(err error) (relay.Class, bool) {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	switch e.Code() & 0xff {
	case 18, 19, 20: // too big, constraint, mismatch
		return relay.Rejected, true
	case 3, 8, 14, 23, 26: // permission, read-only, cannot open, auth, not a database
		return relay.Denied, true
	}
	return 0, false
}
