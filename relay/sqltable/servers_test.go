package sqltable_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/ushergo/usher/internal/sqltest"
	"github.com/ushergo/usher/relay/sqltable"
)

// database is one to test against.
type database struct {
	kind   sqltable.Kind
	driver string
	dsn    string
}

func (d database) open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.driver, d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// each runs a test on every database there is.
func each(t *testing.T, test func(t *testing.T, d database)) {
	for name, start := range map[string]func(*testing.T) database{
		"sqlite": func(t *testing.T) database {
			return database{sqltable.SQLite, "sqlite", filepath.Join(t.TempDir(), "events.db")}
		},
		"mariadb": func(t *testing.T) database {
			return database{sqltable.MySQL, "mysql", sqltest.MariaDB(t, "--innodb-buffer-pool-size=32M")("events")}
		},
		"postgres": func(t *testing.T) database {
			return database{sqltable.Postgres, "pgx", sqltest.Postgres(t, "-c", "fsync=off")("events")}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}
