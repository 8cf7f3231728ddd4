package sqlsink_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var s *sqlsink.Sink
	var err error
	for ctx.Err() == nil { // the server may still be starting
		if s, err = sqlsink.Open(ctx, dsn, 0); err == nil {
			t.Cleanup(func() { s.Close() })
			return s
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal(err)
	return nil
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
	dsn := startMariaDB(t)
	n := 0
	suite(t, func(t *testing.T) string {
		n++
		name := fmt.Sprintf("feed%d", n)
		exec1(t, dsn("mysql"), "CREATE DATABASE "+name)
		return dsn(name)
	})
}

func TestPostgreSQL(t *testing.T) {
	dsn := startPostgres(t)
	n := 0
	suite(t, func(t *testing.T) string {
		n++
		name := fmt.Sprintf("feed%d", n)
		exec1(t, dsn("postgres"), "CREATE DATABASE "+name)
		return dsn(name)
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

// exec1 waits for a server and sends it a statement.
func exec1(t *testing.T, dsn, statement string) {
	t.Helper()
	s := opened(t, dsn)
	defer s.Close()
	if _, err := s.DB().Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// need skips a test whose program is missing, unless everything has to run.
func need(t *testing.T, pkg string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
		if found, _ := filepath.Glob(name); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	if os.Getenv("USHER_TEST_ALL") == "1" {
		t.Fatalf("%s is missing: apt-get install %s", names[0], pkg)
	}
	t.Skipf("needs %s, which is not installed", names[0])
	return ""
}

// socketDir is a folder whose name is short enough for a Unix socket: servers listen there and on no port.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "us")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start runs a server until the test is over; as tells under which user.
func start(t *testing.T, as *syscall.Credential, name string, args ...string) {
	t.Helper()
	logName := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(logName)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if t.Failed() {
			if b, err := os.ReadFile(logName); err == nil {
				t.Logf("%s: %s", name, b[max(0, len(b)-3000):])
			}
		}
	})
}

func startMariaDB(t *testing.T) func(db string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server")
	}
	server := need(t, "mariadb-server", "mariadbd", "/usr/sbin/mariadbd")
	install := need(t, "mariadb-server", "mariadb-install-db")
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir, sock := t.TempDir(), filepath.Join(socketDir(t), "s")
	who := "--user=" + u.Username
	out, err := exec.Command(install, "--no-defaults", "--datadir="+dir, "--auth-root-authentication-method=normal", "--skip-test-db", who).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, nil, server, "--no-defaults", "--datadir="+dir, "--socket="+sock, "--skip-networking", who)
	return func(db string) string { return "mysql:root@unix(" + sock + ")/" + db }
}

func startPostgres(t *testing.T) func(db string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server")
	}
	initdb := need(t, "postgresql", "initdb", "/usr/lib/postgresql/*/bin/initdb")
	server := need(t, "postgresql", "postgres", "/usr/lib/postgresql/*/bin/postgres")
	base := socketDir(t)
	dir := filepath.Join(base, "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var as *syscall.Credential
	if os.Getuid() == 0 { // it refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Skip("PostgreSQL does not run as root, and there is no user postgres")
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(initdb, "-D", dir, "-U", "feed", "--auth=trust", "--no-instructions")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, as, server, "-D", dir, "-h", "", "-k", dir)
	return func(db string) string { return "postgres://feed@/" + db + "?sslmode=disable&host=" + dir }
}
