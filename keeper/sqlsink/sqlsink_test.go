package sqlsink_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ushergo/usher/internal/sqltest"
	"github.com/ushergo/usher/keeper/keepertest"
	"github.com/ushergo/usher/keeper/sqlsink"
)

func suite(t *testing.T, fresh func(t *testing.T) string) {
	keepertest.Run(t, func(t *testing.T) keepertest.Fixture {
		s := opened(t, fresh(t))
		return keepertest.Fixture{Sink: s, Rows: func(t *testing.T) []keepertest.Row { return rows(t, s.DB()) }}
	})
}

func opened(t *testing.T, dsn string) *sqlsink.Sink {
	t.Helper()
	s, err := sqlsink.Open(t.Context(), dsn, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func rows(t *testing.T, db *sql.DB) (list []keepertest.Row) {
	t.Helper()
	rs, err := db.Query("SELECT connection, seq, fence, is_binary, data FROM usher_messages")
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	for rs.Next() {
		var r keepertest.Row
		var data []byte
		if err := rs.Scan(&r.Connection, &r.Seq, &r.Fence, &r.Binary, &data); err != nil {
			t.Fatal(err)
		}
		r.Data = string(data)
		list = append(list, r)
	}
	if err := rs.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestSQLite(t *testing.T) {
	suite(t, func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "m.db") })
}

func TestMariaDB(t *testing.T) {
	database, n := sqltest.MariaDB(t), 0
	suite(t, func(t *testing.T) string {
		n++
		return "mysql:" + database(fmt.Sprintf("feed%d", n))
	})
}

func TestPostgreSQL(t *testing.T) {
	database, n := sqltest.Postgres(t), 0
	suite(t, func(t *testing.T) string {
		n++
		return database(fmt.Sprintf("feed%d", n))
	})
}

func TestAddressesAreNamedWithoutTheirSecret(t *testing.T) {
	for dsn, want := range map[string]string{
		"oracle:x": "begin it with", "sqlite:": "names no file", "mysql:u:hunter22@nowhere": "mysql:", "postgres://u:hunter22@h:port/x": "postgres:",
	} {
		_, err := sqlsink.Open(context.Background(), dsn, 0)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter22") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
