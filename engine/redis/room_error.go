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
	"strings"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

// redisMends are the answers of Redis that somebody has to mend, by their first word.
var redisMends = map[string]string{
	"OOM":              "Redis is full and nothing was changed: give it more memory (maxmemory), or take something out of it",
	"READONLY":         "this Redis is a replica: name the master in engine.addrs, or use mode sentinel or cluster, which find it",
	"LOADING":          "Redis is reading its data from disk: it answers by itself when that is done",
	"MASTERDOWN":       "this Redis is a replica that has lost its master: name the master in engine.addrs",
	"CROSSSLOT":        "a Cluster was reached in mode single, or through a proxy that moves keys: set engine.mode: cluster",
	"MOVED":            "this is a Cluster: set engine.mode: cluster",
	"CLUSTERDOWN":      "the Cluster has slots without a master: see CLUSTER INFO on its nodes",
	"MISCONF":          "Redis cannot write its data to disk and takes nothing: see its log, free the disk",
	"NOREPLICAS":       "Redis has fewer replicas than min-replicas-to-write: bring them back",
	"NOAUTH":           "Redis wants a password: set engine.password, or USHER_REDIS_PASSWORD",
	"WRONGPASS":        "the password or the user is wrong: see engine.username and engine.password",
	"NOPERM":           "the ACL user lacks a right: give it ~usher:* &usher:* +@all -@dangerous +info",
	"WRONGTYPE":        "a key of this room is not of the type that usher made; usher redis check names it. Rename it",
	"BUSY":             "a script of somebody else keeps Redis busy: see its SLOWLOG",
	"TRYAGAIN":         "the Cluster is moving this room's slot: ask again",
	"ERR max number":   "Redis has no connection left: raise its maxclients",
	"DENIED":           "Redis is in protected mode: give it a password, or bind it to this network",
	"NOSCRIPT":         "Redis forgot a script and did not take it again; ask again",
	"ERR unknown comm": "this Redis does not know a command that usher needs: use version 7 or later, and see what is renamed",
}

// roomError tells what was certainly not done from what may have been. read: nothing was to be done.
func roomError(id string, err error, read bool) error {
	var re *rueidis.RedisError
	var op *net.OpError
	switch {
	case errors.As(err, &re):
		text := re.Error()
		if _, what, ok := strings.Cut(text, "USHERTYPE "); ok {
			what, _, _ = strings.Cut(what, " script:")
			return fmt.Errorf("%w: redis: %s", room.ErrUnavailable, what)
		}
		for word, mend := range redisMends {
			if strings.HasPrefix(text, word) || strings.Contains(text, " -"+word+" ") || strings.Contains(text, ": "+word+" ") || strings.Contains(text, "-"+word+" ") {
				return fmt.Errorf("%w: redis: room %s: %s; %s", room.ErrUnavailable, id, firstLine(text), mend)
			}
		}
		return fmt.Errorf("%w: redis: room %s: %s", room.ErrUnavailable, id, firstLine(text))
	case read, errors.As(err, &op) && op.Op == "dial", errors.Is(err, rueidis.ErrClosing), errors.Is(err, rueidis.ErrNoSlot):
		return fmt.Errorf("%w: redis: room %s: %w", room.ErrUnavailable, id, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: redis: room %s: no answer in time: %w", room.ErrUnknown, id, err)
	}
	return fmt.Errorf("%w: redis: room %s: %w", room.ErrUnknown, id, err)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// Explain adds the mend to an error of reaching Redis: what rueidis.NewClient returns.
func Explain(err error) error {
	var (
		re       *rueidis.RedisError
		unknown  x509.UnknownAuthorityError
		host     x509.HostnameError
		invalid  x509.CertificateInvalidError
		notTLS   tls.RecordHeaderError
		op       *net.OpError
		explain  = func(mend string) error { return fmt.Errorf("%w: redis: %w; %s", room.ErrUnavailable, err, mend) }
		eof      = errors.Is(err, io.EOF)
		deadline = errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &re):
		return roomError("-", err, true)
	case errors.As(err, &unknown):
		return explain("its certificate is by an authority not known here: name the authority's file in engine.tls_ca")
	case errors.As(err, &host):
		return explain("its certificate is for another name: write the name of the certificate in engine.addrs")
	case errors.As(err, &invalid):
		return explain("its certificate is not valid: renew it, or see this machine's clock")
	case errors.As(err, &notTLS):
		return explain("it does not speak TLS there: set engine.tls: false, or name its TLS port in engine.addrs")
	case eof:
		return explain("it closed the connection at once: set engine.tls: true if it speaks TLS alone")
	case deadline:
		return explain("no answer in engine.dial_timeout: see that engine.addrs is right, and the network between")
	case errors.As(err, &op):
		return explain("see that it runs and that engine.addrs is right; if it speaks TLS alone, set engine.tls: true")
	}
	return explain("see that it runs and that engine.addrs, the password and engine.tls are right")
}
