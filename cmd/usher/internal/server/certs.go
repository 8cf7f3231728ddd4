package server

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"

	"github.com/ushergo/usher/config"
)

// certificate is one listener's, replaced while it serves.
type certificate struct {
	conf    config.TLS
	current atomic.Pointer[tls.Certificate]
}

// loadCertificate returns nil where no TLS is configured.
func loadCertificate(conf config.TLS, path string) (*certificate, error) {
	if !conf.On() {
		return nil, nil
	}
	c := &certificate{conf: conf}
	if err := c.reload(conf); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// reload reads the files again; on error the old certificate stays.
func (c *certificate) reload(conf config.TLS) error {
	pair, err := tls.LoadX509KeyPair(conf.Cert, conf.Key)
	if err != nil {
		return fmt.Errorf("the certificate cannot be used: %w; check that %s and %s are PEM files that belong together", err, conf.Cert, conf.Key)
	}
	c.current.Store(&pair)
	return nil
}

func (c *certificate) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.current.Load(), nil
		},
	}
}
