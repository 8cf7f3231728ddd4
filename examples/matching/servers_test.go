package matching

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

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

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// start runs a server until the test is over; as tells under which user.
func start(t *testing.T, as *syscall.Credential, name string, args ...string) *exec.Cmd {
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
	return cmd
}

func startMariaDB(t *testing.T) (dsn string) {
	t.Helper()
	server := need(t, "mariadb-server", "mariadbd", "/usr/sbin/mariadbd")
	install := need(t, "mariadb-server", "mariadb-install-db")
	dir, port := t.TempDir(), freePort(t)
	who := "--user=" + me(t)
	out, err := exec.Command(install, "--no-defaults", "--datadir="+dir, "--auth-root-authentication-method=normal", "--skip-test-db", who).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, nil, server, "--no-defaults", "--datadir="+dir, "--socket="+filepath.Join(dir, "s"), "--port="+port, "--bind-address=127.0.0.1",
		who, "--max-connections=400", "--innodb-flush-log-at-trx-commit=1", "--skip-name-resolve")
	dsn = "mysql:root@tcp(127.0.0.1:" + port + ")/"
	create(t, dsn+"mysql", "CREATE DATABASE jobs")
	return dsn + "jobs"
}

func me(t *testing.T) string {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return u.Username
}

func startPostgres(t *testing.T) (dsn string) {
	t.Helper()
	initdb := need(t, "postgresql", "initdb", "/usr/lib/postgresql/*/bin/initdb")
	server := need(t, "postgresql", "postgres", "/usr/lib/postgresql/*/bin/postgres")
	dir, port := filepath.Join(t.TempDir(), "data"), freePort(t)
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
		for up := filepath.Dir(dir); len(up) > len(os.TempDir()); up = filepath.Dir(up) {
			if err := os.Chmod(up, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command(initdb, "-D", dir, "-U", "jobs", "--auth=trust", "--no-instructions")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, as, server, "-D", dir, "-p", port, "-h", "127.0.0.1", "-k", dir, "-c", "max_connections=400")
	dsn = "postgres://jobs@127.0.0.1:" + port + "/"
	create(t, dsn+"postgres?sslmode=disable", "CREATE DATABASE jobs")
	return dsn + "jobs?sslmode=disable"
}

// create waits for a server and sends it a statement.
func create(t *testing.T, dsn, statement string) {
	t.Helper()
	db, _, err := open(dsn, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if err = db.PingContext(context.Background()); err == nil {
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

// eachDB runs a test on every database there is.
func eachDB(t *testing.T, test func(t *testing.T, db *DB)) {
	for _, tc := range []struct {
		name string
		dsn  func(t *testing.T) string
	}{
		{"sqlite", func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "jobs.db") }},
		{"mariadb", startMariaDB},
		{"postgres", startPostgres},
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
	server := need(t, "redis-server", "redis-server")
	port := freePort(t)
	start(t, nil, server, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	addr := "127.0.0.1:" + port
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr
		}
		if time.Now().After(end) {
			t.Fatal(fmt.Sprint("redis-server does not answer on ", addr))
		}
	}
}
