// Package sqltest starts MariaDB and PostgreSQL for tests, on Unix sockets: no port is taken.
package sqltest

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

	_ "github.com/go-sql-driver/mysql" // drivers, to make databases with
	_ "github.com/jackc/pgx/v5/stdlib"
)

// MariaDB starts a server until the test is over. database makes a database of a name, and returns its address as
// go-sql-driver/mysql wants it. More are the server's own arguments. Without the program the test is skipped, and fails
// under USHER_TEST_ALL=1; it is skipped under -short.
func MariaDB(t *testing.T, more ...string) (database func(name string) string) {
	t.Helper()
	server := need(t, "mariadb-server", "mariadbd", "/usr/sbin/mariadbd")
	install := need(t, "mariadb-server", "mariadb-install-db")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	top := folder(t)
	dir, socket, who := filepath.Join(top, "d"), filepath.Join(top, "s"), "--user="+me.Username
	out, err := exec.Command(install, "--no-defaults", "--datadir="+dir, "--auth-root-authentication-method=normal", "--skip-test-db", who).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, nil, server, append([]string{"--no-defaults", "--datadir=" + dir, "--socket=" + socket, "--skip-networking", who}, more...)...)
	dsn := func(name string) string { return "root@unix(" + socket + ")/" + name }
	return func(name string) string {
		t.Helper()
		create(t, "mysql", dsn("mysql"), name)
		return dsn(name)
	}
}

// Postgres starts a server until the test is over. database makes a database of a name, and returns its address as pgx
// wants it. More are the server's own arguments. It is skipped as MariaDB is.
func Postgres(t *testing.T, more ...string) (database func(name string) string) {
	t.Helper()
	initdb := need(t, "postgresql", "initdb", "/usr/lib/postgresql/*/bin/initdb")
	server := need(t, "postgresql", "postgres", "/usr/lib/postgresql/*/bin/postgres")
	dir := filepath.Join(folder(t), "d")
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
	cmd := exec.Command(initdb, "-D", dir, "-U", "usher", "--auth=trust", "--no-instructions", "--no-sync")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, as, server, append([]string{"-D", dir, "-h", "", "-k", dir}, more...)...)
	dsn := func(name string) string { return "postgres://usher@/" + name + "?sslmode=disable&host=" + dir }
	return func(name string) string {
		t.Helper()
		create(t, "pgx", dsn("postgres"), name)
		return dsn(name)
	}
}

// need finds a program, by name or by a pattern of paths.
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

// folder is one that every user may look into, with a short name: a socket's path may have but 107 bytes.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "us")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
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
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			if b, err := os.ReadFile(logName); err == nil {
				t.Logf("%s: %s", name, b[max(0, len(b)-3000):])
			}
		}
	})
}

// create waits for the server, and makes a database.
func create(t *testing.T, driver, dsn, name string) {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if err = db.PingContext(t.Context()); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the server does not answer: %v", err)
		}
	}
	if _, err := db.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
}
