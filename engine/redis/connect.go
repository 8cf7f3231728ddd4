package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"
)

// Mode is a set-up of Redis.
type Mode string

const (
	Single   Mode = "single"   // one server, its replicas unknown to us
	Cluster  Mode = "cluster"  // Redis Cluster
	Sentinel Mode = "sentinel" // one master at a time, named by Sentinels
)

// Config says how Redis is reached. Its fields are the keys below engine: in usher's file, by whose names errors speak.
type Config struct {
	Addrs            []string // addrs, required: the server, some of the Cluster's, or the Sentinels
	Mode             Mode     // mode; default Single
	Username         string   // username; default the default user
	Password         string   // password
	TLS              bool     // tls
	TLSCA            string   // tls_ca: PEM file; default the system's authorities
	TLSCert          string   // tls_cert: PEM file, with
	TLSKey           string   // tls_key
	SentinelMaster   string   // sentinel_master; required with Sentinel
	SentinelUsername string   // sentinel_username
	SentinelPassword string   // sentinel_password
	// DialTimeout (dial_timeout) bounds one attempt to connect. Default 5s.
	DialTimeout time.Duration
	// Timeout is how long a connection may leave a command unanswered before it is given up, and what was asked is
	// unknown. Default 3s. Danger: under it must lie whatever Redis does in one go, an AOF rewrite's fork included.
	Timeout time.Duration
}

// Connect opens a client, after it has seen that the server answers and is what c says. The client stays the caller's to
// close. Errors name the key of c and the mend. ctx bounds the opening alone; one attempt to connect is DialTimeout.
func Connect(ctx context.Context, c Config) (rueidis.Client, error) {
	opt, err := c.options()
	if err != nil {
		return nil, err
	}
	client, err := rueidis.NewClient(opt)
	if err != nil {
		return nil, c.explain(err)
	}
	if err := c.inspect(ctx, client); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

func (c *Config) options() (rueidis.ClientOption, error) {
	if len(c.Addrs) == 0 {
		return rueidis.ClientOption{}, errors.New("engine.addrs: names no server; write addrs: [127.0.0.1:6379]")
	}
	def := func(d, to time.Duration) time.Duration {
		if d <= 0 {
			return to
		}
		return d
	}
	opt := rueidis.ClientOption{
		InitAddress: c.Addrs, Username: c.Username, Password: c.Password, ClientName: "usher",
		Dialer:           net.Dialer{Timeout: def(c.DialTimeout, 5*time.Second), KeepAlive: time.Second},
		ConnWriteTimeout: def(c.Timeout, 3*time.Second),
		DisableCache:     true,
		BlockingPoolSize: 256,
		// Half a megabyte each for reading and writing is for bulk; our calls are small and many.
		ReadBufferEachConn: 64 << 10, WriteBufferEachConn: 64 << 10,
	}
	switch c.Mode {
	case Single, "":
		opt.ForceSingleClient = true
	case Cluster:
		opt.ClusterOption.ShardsRefreshInterval = 2 * time.Second // a failover is seen also by who only reads
	case Sentinel:
		if c.SentinelMaster == "" {
			return opt, errors.New(`engine.sentinel_master: is missing beside mode: sentinel; give the name after "sentinel monitor"`)
		}
		opt.Sentinel = rueidis.SentinelOption{MasterSet: c.SentinelMaster, Username: c.SentinelUsername, Password: c.SentinelPassword, Dialer: opt.Dialer}
	default:
		return opt, fmt.Errorf("engine.mode: %q is unknown; choose single, cluster or sentinel", c.Mode)
	}
	if !c.TLS {
		return opt, nil
	}
	conf, err := c.tlsConfig()
	if err != nil {
		return opt, err
	}
	opt.TLSConfig = conf
	if c.Mode == Sentinel {
		opt.Sentinel.TLSConfig = conf
	}
	return opt, nil
}

func (c *Config) tlsConfig() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLSCA != "" {
		pem, err := os.ReadFile(c.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("engine.tls_ca: %w; name a PEM file that usher may read", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("engine.tls_ca: %s holds no certificate in PEM; name the file of the authority that signed Redis's", c.TLSCA)
		}
	}
	if c.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("engine.tls_cert and tls_key: %w; give a PEM certificate and the key that belongs to it", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// inspect asks the server what it is, so that a wrong set-up is told at the start and not by its consequences.
func (c *Config) inspect(ctx context.Context, client rueidis.Client) error {
	info, err := serverInfo(ctx, client)
	if err != nil {
		return c.explain(err)
	}
	return c.fits(info)
}

// fits compares what the server says of itself with what c says.
func (c *Config) fits(info map[string]string) error {
	at := strings.Join(c.Addrs, ", ")
	version := info["redis_version"] // Valkey says 7.2.4 there, for those who ask
	major, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(major)
	switch single := c.Mode == Single || c.Mode == ""; {
	case info["redis_mode"] == "sentinel":
		return fmt.Errorf("engine.addrs: %s is a Sentinel; write mode: sentinel and sentinel_master", at)
	case single && info["cluster_enabled"] == "1":
		return fmt.Errorf("engine.mode: %s is part of a Redis Cluster; write mode: cluster", at)
	case c.Mode == Cluster && info["cluster_enabled"] != "1":
		return fmt.Errorf("engine.mode: %s is no Redis Cluster; write mode: single", at)
	case single && info["role"] == "slave":
		return fmt.Errorf("engine.addrs: %s is a replica of %s:%s and takes no writes; name its master, or write mode: sentinel",
			at, info["master_host"], info["master_port"])
	case n < 7:
		return fmt.Errorf("engine.addrs: %s is Redis %s; usher needs 7 or later", at, version)
	}
	return nil
}

// explain names the key that mends what a client says. Passwords are in none of its errors.
func (c *Config) explain(err error) error {
	at := strings.Join(c.Addrs, ", ")
	say := func(key, what, mend string) error {
		return fmt.Errorf("engine.%s: %s; %s: %w", key, what, mend, err)
	}
	text, sentinels := err.Error(), ""
	if c.Mode == Sentinel {
		sentinels = "; if it is the Sentinels that ask, sentinel_password (or USHER_SENTINEL_PASSWORD)"
	}
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var timeout net.Error
	var name *net.DNSError
	switch {
	case errors.As(err, &authority):
		return say("tls_ca", "the certificate of "+at+" is signed by nobody we know", "name the PEM file of the authority that signed it")
	case errors.As(err, &host):
		return say("addrs", "the certificate of "+at+" is for another name", "use a name that the certificate has")
	case errors.As(err, &invalid):
		return say("tls", "the certificate of "+at+" is not valid", "renew it, or check this machine's clock")
	case errors.As(err, &record):
		return say("tls", at+" does not speak TLS", "write tls: false, or name the server's tls-port")
	case strings.Contains(text, "tls: ") && (strings.Contains(text, "certificate required") || strings.Contains(text, "bad certificate") || strings.Contains(text, "unknown certificate")):
		return say("tls_cert", at+" asks for a certificate that it trusts", "give tls_cert and tls_key, signed by its tls-ca-cert-file")
	case strings.HasPrefix(text, "WRONGPASS"), strings.Contains(text, "invalid username-password"), strings.Contains(text, "invalid password"):
		return say("password", at+" refuses username and password", "set username and password as its ACL has them (or USHER_REDIS_PASSWORD)"+sentinels)
	case strings.HasPrefix(text, "NOAUTH"), strings.Contains(text, "NOAUTH"):
		return say("password", at+" asks for a password", "set password (or USHER_REDIS_PASSWORD), and username if there is one"+sentinels)
	case strings.HasPrefix(text, "NOPERM"):
		return say("username", "the ACL user may not do what usher needs", "allow it ~usher:* ~* &* +@all -@dangerous +info +cluster|slots +cluster|shards, or see docs/operations.md")
	case strings.Contains(text, "cluster support disabled"):
		return say("mode", at+" is no Redis Cluster", "write mode: single")
	case strings.Contains(text, "No such master"), c.Mode == Sentinel && rueidis.IsRedisNil(err):
		return say("sentinel_master", "the Sentinels watch no master of the name "+strconv.Quote(c.SentinelMaster), `give the name after "sentinel monitor"`)
	case c.Mode == Sentinel && strings.Contains(text, "unknown command"):
		return say("addrs", at+" is no Sentinel", "name the Sentinels (port 26379), or write mode: single")
	case strings.HasPrefix(text, "LOADING"):
		return say("addrs", at+" is reading its data from disk", "start again in a moment")
	case errors.As(err, &name):
		return say("addrs", "the name in "+at+" is not known", "check its spelling, or write an address")
	case errors.Is(err, syscall.ECONNREFUSED):
		return say("addrs", "nothing listens at "+at, "is Redis running there, and bound to that address?")
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		if !c.TLS {
			return say("tls", at+" hangs up", "if it speaks TLS, write tls: true; else see its log")
		}
		return say("tls_cert", at+" hangs up", "if it asks for a certificate, give tls_cert and tls_key; else see its log")
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		if c.TLS {
			return say("addrs", at+" does not answer a TLS handshake", "if it speaks no TLS, write tls: false; is a firewall between?")
		}
		return say("addrs", at+" does not answer", "is a firewall between? dial_timeout says how long to wait")
	}
	return fmt.Errorf("engine.addrs: Redis at %s: %w", at, err)
}

// Doubts says, in a sentence each, what about a server makes promises weaker than they could be. It asks only once and
// reports no failure of its own.
func Doubts(ctx context.Context, client rueidis.Client) []string {
	var out []string
	seen := map[string]bool{}
	for addr, node := range client.Nodes() {
		info, err := serverInfo(ctx, node)
		if err != nil || info["role"] == "slave" {
			continue
		}
		add := func(what string) {
			if !seen[what] {
				seen[what] = true
				out = append(out, fmt.Sprintf("Redis at %s %s", addr, what))
			}
		}
		if p := info["maxmemory_policy"]; p != "" && p != "noeviction" && info["maxmemory"] != "0" {
			add("evicts keys when it is full (maxmemory-policy " + p + "), and places would be lost: set noeviction there")
		}
		if info["aof_enabled"] == "0" {
			add("keeps no append-only file: what it answered is lost when it stops. Set appendonly yes there, or see docs/durability.md")
		}
	}
	return out
}

func serverInfo(ctx context.Context, client rueidis.Client) (map[string]string, error) {
	text, err := client.Do(ctx, client.B().Info().Build()).ToString()
	if err != nil {
		return nil, err
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info, nil
}
