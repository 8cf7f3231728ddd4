package redis_test

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/internal/redistest"
)

// connects opens and closes; the error as text.
func connects(t *testing.T, c redis.Config) string {
	t.Helper()
	client, err := redis.Connect(context.Background(), c)
	if err != nil {
		return err.Error()
	}
	defer client.Close()
	if err := client.Do(context.Background(), client.B().Ping().Build()).Error(); err != nil {
		return err.Error()
	}
	return ""
}

// What is wrong with a set-up is told by the key of the file and what to write instead.
func TestConnectSaysWhichKeyToMend(t *testing.T) {
	plain := redistest.Start(t)
	secret := redistest.Start(t, "--requirepass", "open-sesame")
	acl := redistest.Start(t, "--user", "usher", "on", ">s3cret", "~*", "&*", "+@all", "--user", "default", "off")
	cluster := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-port", "0")
	replica := plain.Replica()
	sentinel := redistest.Sentinel(t, plain, 1)
	certs, others := redistest.NewCerts(t), redistest.NewCerts(t)
	secure := redistest.Start(t, certs.Args("no")...)
	mutual := redistest.Start(t, certs.Args("yes")...)

	dead, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0) // bound, not listening: refuses, and nobody else can take it
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(dead)
	if err := syscall.Bind(dead, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(dead)
	if err != nil {
		t.Fatal(err)
	}
	deadAddr := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}).String()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()

	at := func(s *redistest.Server) redis.Config { return redis.Config{Addrs: []string{s.Addr}} }
	with := func(c redis.Config, f func(*redis.Config)) redis.Config { f(&c); return c }
	watched := redis.Config{Addrs: []string{sentinel.Addr}, Mode: redis.Sentinel, SentinelMaster: "mymaster"}
	for _, tc := range []struct {
		name string
		c    redis.Config
		want string // "": it connects
	}{
		{"plain", at(plain), ""},
		{"password", with(at(secret), func(c *redis.Config) { c.Password = "open-sesame" }), ""},
		{"acl user", with(at(acl), func(c *redis.Config) { c.Username, c.Password = "usher", "s3cret" }), ""},
		{"sentinel", watched, ""},
		{"tls", with(at(secure), func(c *redis.Config) { c.TLS, c.TLSCA = true, certs.CA }), ""},
		{"mutual tls", with(at(mutual), func(c *redis.Config) { c.TLS, c.TLSCA, c.TLSCert, c.TLSKey = true, certs.CA, certs.Cert, certs.Key }), ""},
		{"no address", redis.Config{}, "engine.addrs: names no server; write addrs: [127.0.0.1:6379]"},
		{"nobody listens", redis.Config{Addrs: []string{deadAddr}}, "engine.addrs: nothing listens at " + deadAddr + "; is Redis running there"},
		{"nobody answers", redis.Config{Addrs: []string{mute.Addr().String()}, DialTimeout: 200 * time.Millisecond}, "engine.addrs: " + mute.Addr().String() + " does not answer"},
		{"no password", at(secret), "engine.password: " + secret.Addr + " asks for a password; set password (or USHER_REDIS_PASSWORD)"},
		{"wrong password", with(at(secret), func(c *redis.Config) { c.Password = "hunter2" }), "engine.password: " + secret.Addr + " refuses username and password"},
		{"wrong acl user", with(at(acl), func(c *redis.Config) { c.Username, c.Password = "nobody", "s3cret" }), "engine.password: " + acl.Addr + " refuses username and password"},
		{"single for a cluster", at(cluster), "engine.mode: " + cluster.Addr + " is part of a Redis Cluster; write mode: cluster"},
		{"cluster for a single", with(at(plain), func(c *redis.Config) { c.Mode = redis.Cluster }), "engine.mode: " + plain.Addr + " is no Redis Cluster; write mode: single"},
		{"replica", at(replica), "engine.addrs: " + replica.Addr + " is a replica of " + plain.Addr},
		{"single for a sentinel", at(sentinel), "engine.addrs: " + sentinel.Addr + " is a Sentinel; write mode: sentinel and sentinel_master"},
		{"sentinel for a single", with(at(plain), func(c *redis.Config) { c.Mode, c.SentinelMaster = redis.Sentinel, "mymaster" }), "engine.addrs: " + plain.Addr + " is no Sentinel"},
		{"sentinels with a password", with(at(secret), func(c *redis.Config) { c.Mode, c.SentinelMaster = redis.Sentinel, "mymaster" }), "if it is the Sentinels that ask, sentinel_password"},
		{"unwatched master", with(watched, func(c *redis.Config) { c.SentinelMaster = "ours" }), `engine.sentinel_master: the Sentinels watch no master of the name "ours"`},
		{"tls to plain", with(at(plain), func(c *redis.Config) { c.TLS, c.DialTimeout = true, time.Second }), "engine.addrs: " + plain.Addr + " does not answer a TLS handshake; if it speaks no TLS, write tls: false"},
		{"plain to tls", at(secure), "engine.tls: " + secure.Addr + " hangs up; if it speaks TLS, write tls: true"},
		{"unknown authority", with(at(secure), func(c *redis.Config) { c.TLS = true }), "engine.tls_ca: the certificate of " + secure.Addr + " is signed by nobody we know"},
		{"other authority", with(at(secure), func(c *redis.Config) { c.TLS, c.TLSCA = true, others.CA }), "engine.tls_ca: the certificate of " + secure.Addr},
		{"authority that is none", with(at(secure), func(c *redis.Config) { c.TLS, c.TLSCA = true, certs.Key }), "engine.tls_ca: " + certs.Key + " holds no certificate in PEM"},
		{"no certificate of ours", with(at(mutual), func(c *redis.Config) { c.TLS, c.TLSCA = true, certs.CA }), "engine.tls_cert: " + mutual.Addr},
		{"key of another certificate", with(at(mutual), func(c *redis.Config) { c.TLS, c.TLSCA, c.TLSCert, c.TLSKey = true, certs.CA, certs.Cert, others.Key }), "engine.tls_cert and tls_key: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := connects(t, tc.c)
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got\n  %s\nwant\n  %s", got, tc.want)
			}
			for _, pw := range []string{"hunter2", "s3cret", "open-sesame"} {
				if strings.Contains(got, pw) {
					t.Error("a password is in the error")
				}
			}
		})
	}
}
