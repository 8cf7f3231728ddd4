package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// answer is what enter, status, claim and renew say of a ticket. Numbers that may be null are pointers.
type answer struct {
	TicketID        string     `json:"ticket_id"`
	Ticket          string     `json:"ticket"`
	State           string     `json:"state"`
	Seq             *uint64    `json:"seq"`
	Pos             *uint64    `json:"pos"`
	Place           *int64     `json:"place"`
	PollAfterMS     int64      `json:"poll_after_ms"`
	PresenceAfterMS int64      `json:"presence_after_ms"`
	At              time.Time  `json:"at"`
	Admission       *admission `json:"admission"`
}

type admission struct {
	ExpiresAt    time.Time `json:"expires_at"`
	RenewAfterMS int64     `json:"renew_after_ms"`
}

// problem is an application/problem+json body, as far as we use it.
type problem struct {
	Code   string `json:"code"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

func decodeAnswer(body []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("%w: %v", errMalformed, err)
	}
	return a, nil
}

func decodeProblem(body []byte) problem {
	var p problem
	if json.Unmarshal(body, &p) != nil {
		return problem{}
	}
	p.Code, p.Reason = plain(p.Code), plain(p.Reason)
	return p
}

// plain keeps a word from outside fit to be a name in a report.
func plain(s string) string {
	if len(s) > 40 {
		s = s[:40]
	}
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, s)
}

// errorKind names what went wrong, for counting: a few dozen names at most.
func errorKind(resp response, err error) string {
	if err == nil {
		if code := decodeProblem(resp.body).Code; code != "" {
			return fmt.Sprintf("%d %s", resp.status, code)
		}
		return strings.TrimSpace(fmt.Sprintf("%d %s", resp.status, http.StatusText(resp.status)))
	}
	var ne net.Error
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.Is(err, errMalformed):
		return "malformed answer"
	case errors.Is(err, errTooLarge):
		return "answer too large"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "too many open files here (raise ulimit -n)"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "no free local port"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed"
	case errors.As(err, &dns):
		return "name not found"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return "timeout"
	}
	return "connection failed"
}

// Seq reports a value or 0 for null.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
