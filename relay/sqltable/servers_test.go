package sqltable_test

import (
	"database/sql"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

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
	for name, start := range map[string]func(*testing.T) database{"sqlite": startSQLite, "mariadb": startMariaDB, "postgres": startPostgres} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

func startSQLite(t *testing.T) database {
	path := filepath.Join(t.TempDir(), "events.db")
	return database{sqltable.SQLite, "sqlite", path}
}

// need skips a test whose program is missing, unless everything has to run.
func need(t *testing.T, pkg string, names ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server; -short")
	}
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

// folder is one with a short name, since a socket's path may have but 107 bytes.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "us")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
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
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
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

// answers waits until a server takes connections, and runs a statement.
func answers(t *testing.T, d database, statement string) {
	t.Helper()
	db := d.open(t)
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := db.PingContext(t.Context())
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the server does not answer: %v", err)
		}
	}
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

func startMariaDB(t *testing.T) database {
	server := need(t, "mariadb-server", "mariadbd", "/usr/sbin/mariadbd")
	install := need(t, "mariadb-server", "mariadb-install-db")
	dir := folder(t)
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	who := "--user=" + u.Username
	out, err := exec.Command(install, "--no-defaults", "--datadir="+dir, "--auth-root-authentication-method=normal", "--skip-test-db", who).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	socket := filepath.Join(dir, "s")
	start(t, nil, server, "--no-defaults", "--datadir="+dir, "--socket="+socket, "--skip-networking", who, "--innodb-buffer-pool-size=32M")
	answers(t, database{sqltable.MySQL, "mysql", "root@unix(" + socket + ")/mysql"}, "CREATE DATABASE events")
	return database{sqltable.MySQL, "mysql", "root@unix(" + socket + ")/events"}
}

func startPostgres(t *testing.T) database {
	initdb := need(t, "postgresql", "initdb", "/usr/lib/postgresql/*/bin/initdb")
	server := need(t, "postgresql", "postgres", "/usr/lib/postgresql/*/bin/postgres")
	top := folder(t)
	dir := filepath.Join(top, "d")
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
		if err := os.Chmod(top, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(initdb, "-D", dir, "-U", "events", "--auth=trust", "--no-instructions", "--no-sync")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, as, server, "-D", dir, "-h", "", "-k", dir, "-c", "fsync=off")
	answers(t, database{sqltable.Postgres, "pgx", "postgres:///postgres?host=" + dir + "&user=events"}, "CREATE DATABASE events")
	return database{sqltable.Postgres, "pgx", "postgres:///events?host=" + dir + "&user=events"}
}
