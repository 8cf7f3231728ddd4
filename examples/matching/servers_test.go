package matching

import (
	"path/filepath"
	"testing"

	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/internal/sqltest"
)

// eachDB runs a test on every database there is.
func eachDB(t *testing.T, test func(t *testing.T, db *DB)) {
	for _, tc := range []struct {
		name string
		dsn  func(t *testing.T) string
	}{
		{"sqlite", func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "jobs.db") }},
		{"mariadb", func(t *testing.T) string {
			return "mysql:" + sqltest.MariaDB(t, "--max-connections=400", "--innodb-flush-log-at-trx-commit=1")("jobs")
		}},
		{"postgres", func(t *testing.T) string { return sqltest.Postgres(t, "-c", "max_connections=400")("jobs") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dsn := tc.dsn(t)
			db, err := Open(t.Context(), dsn, dsn, 50)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			test(t, db)
		})
	}
}

func startRedis(t *testing.T) string {
	t.Helper()
	return redistest.Start(t, "--save", "", "--appendonly", "no").Addr
}
