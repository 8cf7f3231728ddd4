package redis_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// redisProcess is one redis-server of a test, on a port of its own.
type redisProcess struct {
	t     testing.TB
	cmd   *exec.Cmd
	out   *bytes.Buffer
	dir   string
	addr  string
	port  int
	args  func(port int) []string
	admin func(addr string) rueidis.ClientOption
	gone  chan struct{} // closed once the process is
}

func needRedis(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal("redis-server is missing: apt-get install redis-server")
		}
		t.Skip("needs redis-server, which is not installed")
	}
}

func plainOption(addr string) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true}
}

// startRedis starts a server. args are asked for each port that is tried: another process may have taken it.
func startRedis(t testing.TB, admin func(addr string) rueidis.ClientOption, args func(port int) []string) *redisProcess {
	t.Helper()
	needRedis(t)
	p := &redisProcess{t: t, dir: t.TempDir(), args: args, admin: admin}
	t.Cleanup(p.kill)
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p.port = l.Addr().(*net.TCPAddr).Port
		p.addr = l.Addr().String()
		l.Close()
		if p.start() {
			return p
		}
	}
	t.Fatalf("redis-server does not start: %s", p.out)
	return nil
}

// start says whether the server that answers there is this one.
func (p *redisProcess) start() bool {
	p.t.Helper()
	p.out = &bytes.Buffer{}
	p.cmd = exec.Command("redis-server", p.args(p.port)...)
	p.cmd.Dir = p.dir
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	exited := make(chan struct{})
	p.gone = exited
	cmd := p.cmd
	go func() { _ = cmd.Wait(); close(exited) }()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); {
		select {
		case <-exited:
			return false
		default:
		}
		if c, err := rueidis.NewClient(p.admin(p.addr)); err == nil {
			info, err := c.Do(context.Background(), c.B().Info().Section("server").Build()).ToString()
			c.Close()
			if err == nil {
				return strings.Contains(info, fmt.Sprintf("process_id:%d\r", cmd.Process.Pid))
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.t.Fatalf("redis-server does not answer: %s", p.out)
	return false
}

// restart starts it again after kill, on the same port and data.
func (p *redisProcess) restart() {
	p.t.Helper()
	for end := time.Now().Add(30 * time.Second); !p.start(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) { // clients know this address alone
			p.t.Skipf("another process has taken port %d meanwhile", p.port)
		}
	}
}

func (p *redisProcess) kill() {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		<-p.gone // and its port is free
		p.cmd = nil
	}
}

func (p *redisProcess) client() rueidis.Client {
	p.t.Helper()
	c, err := rueidis.NewClient(p.admin(p.addr))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(c.Close)
	return c
}

// soon waits for something. A Sentinel that a busy machine has held up does nothing for half a minute (TILT).
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within three minutes: %s", what)
		}
	}
}

// startAOF is a server as one runs it: every second to disk.
func startAOF(t testing.TB, extra ...string) *redisProcess {
	return startRedis(t, plainOption, func(port int) []string {
		return append([]string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--repl-diskless-sync-delay", "0"}, extra...)
	})
}

// sentinels are a master, a replica, and a Sentinel that watches them.
type sentinels struct {
	t        testing.TB
	servers  [2]*redisProcess
	sentinel *redisProcess
}

func startSentinels(t testing.TB) *sentinels {
	s := &sentinels{t: t}
	s.servers[0] = startAOF(t)
	s.servers[1] = startRedis(t, plainOption, func(port int) []string {
		return []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--replicaof", "127.0.0.1", strconv.Itoa(s.servers[0].port), "--repl-diskless-sync-delay", "0"}
	})
	s.synced(0, 1)
	s.sentinel = startRedis(t, plainOption, func(port int) []string {
		file := filepath.Join(t.TempDir(), "sentinel.conf")
		conf := fmt.Sprintf("port %d\nbind 127.0.0.1\nsentinel monitor room 127.0.0.1 %d 1\nsentinel down-after-milliseconds room 1000\nsentinel failover-timeout room 10000\n", port, s.servers[0].port)
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{file, "--sentinel"}
	})
	c := s.sentinel.client()
	soon(t, "the Sentinel knows the replica", func() bool {
		got, _ := c.Do(context.Background(), c.B().Arbitrary("SENTINEL", "REPLICAS", "room").Build()).ToArray()
		return len(got) == 1
	})
	return s
}

// synced waits until b replicates a.
func (s *sentinels) synced(a, b int) {
	s.t.Helper()
	c, of := s.servers[b].client(), s.servers[a].client()
	soon(s.t, "the replica follows", func() bool {
		info, _ := c.Do(context.Background(), c.B().Info().Section("replication").Build()).ToString()
		return strings.Contains(info, "master_link_status:up") && strings.Contains(info, fmt.Sprintf("master_port:%d\r", s.servers[a].port))
	})
	soon(s.t, "writes arrive at the replica", func() bool { // after a diskless copy, with its first sign of life, up to a second later
		for _, err := range []error{of.Do(context.Background(), of.B().Set().Key("probe").Value("x").Build()).Error(), of.Do(context.Background(), of.B().Del().Key("probe").Build()).Error()} {
			if err != nil {
				return false
			}
		}
		n, _ := of.Do(context.Background(), of.B().Wait().Numreplicas(1).Timeout(1000).Build()).AsInt64()
		return n >= 1
	})
}

func (s *sentinels) client() rueidis.Client {
	s.t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{s.sentinel.addr}, DisableCache: true, Sentinel: rueidis.SentinelOption{MasterSet: "room"},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// certs are an authority, and a server's certificate by it, in files.
type certs struct {
	ca, cert, key string
	pool          *x509.CertPool
}

func makeCerts(t testing.TB) certs {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	fatal := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	fatal(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	fatal(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	fatal(err)
	parsed, err := x509.ParseCertificate(caDER)
	fatal(err)
	c := certs{ca: write("ca.crt", "CERTIFICATE", caDER), cert: write("redis.crt", "CERTIFICATE", der), key: write("redis.key", "PRIVATE KEY", keyDER), pool: x509.NewCertPool()}
	c.pool.AddCert(parsed)
	return c
}

// tlsACL is a server that speaks TLS alone, and has a user who may do what usher needs and no more.
type tlsACL struct {
	*redisProcess
	certs certs
}

const usherRights = "~usher:* &usher:* +@all -@dangerous +info"

func startTLS(t testing.TB) tlsACL {
	c := makeCerts(t)
	admin := func(addr string) rueidis.ClientOption {
		o := plainOption(addr)
		o.TLSConfig, o.Password = &tls.Config{RootCAs: c.pool, MinVersion: tls.VersionTLS12}, "root"
		return o
	}
	p := startRedis(t, admin, func(port int) []string {
		return []string{
			"--port", "0", "--tls-port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--tls-cert-file", c.cert, "--tls-key-file", c.key,
			"--tls-ca-cert-file", c.ca, "--tls-auth-clients", "no", "--requirepass", "root",
		}
	})
	must(t, p.client(), append([]string{"ACL", "SETUSER", "usher", "on", ">secret"}, strings.Fields(usherRights)...)...)
	return tlsACL{p, c}
}

func (s tlsACL) option() rueidis.ClientOption {
	o := plainOption(s.addr)
	o.TLSConfig, o.Username, o.Password = &tls.Config{RootCAs: s.certs.pool, MinVersion: tls.VersionTLS12}, "usher", "secret"
	return o
}
