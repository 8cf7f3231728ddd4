package web

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/room"
)

func isEnded(err error) bool {
	return errors.Is(err, room.ErrEnded) || errors.Is(err, room.ErrNoTicket)
}

func fromMicro(us int64) time.Time { return time.UnixMicro(us) }

// matchesTag says whether an If-None-Match names a tag, compared weakly.
func matchesTag(lines []string, etag string) bool {
	strong := strings.TrimPrefix(etag, "W/")
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			part = strings.TrimSpace(part)
			if part == "*" || strings.TrimPrefix(part, "W/") == strong {
				return true
			}
		}
	}
	return false
}

// json answers a document that is the caller's own.
func (c *call) json(status int, cache string, doc any) {
	c.raw(status, cache, "application/json", marshal(doc))
}

func (c *call) raw(status int, cache, kind string, body []byte) {
	h := c.w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", cache)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(status)
	if c.r.Method != http.MethodHead {
		_, _ = c.w.Write(body)
	}
}

// shared answers a document that anybody may read and a cache may keep for five minutes.
func (c *call) shared(kind string, body []byte) {
	c.w.Header().Set("Access-Control-Allow-Origin", "*")
	if c.r.Method == http.MethodOptions {
		c.preflight(siteOwn)
		return
	}
	c.raw(http.StatusOK, "public, max-age=300", kind, body)
}

// jwks publishes the keys with which origins check admissions. They are published ten minutes before they
// sign, twice what a cache may keep them.
func (c *call) jwks() { c.shared("application/json", c.s.opts.Keys.JWKS()) }

// live says that the process answers.
func (c *call) live() { c.json(http.StatusOK, "no-store", map[string]string{"status": "live"}) }

// ready says whether visitors should be sent here.
func (c *call) ready() {
	c.readiness(func(error) string {
		return "the engine does not take commands; the admin listener's /health/ready says why"
	})
}

// adminReady says the same to the operator, with the reason.
func (c *call) adminReady() { c.readiness(error.Error) }

func (c *call) readiness(detail func(error) string) {
	switch err := c.s.health(); {
	case c.s.isDraining():
		c.fail(&problem{status: 503, code: "draining", detail: "this node is being stopped; send visitors to another", retry: 5 * time.Second})
	case err != nil:
		c.fail(&problem{status: 503, code: "engine_unavailable", detail: detail(err), retry: 5 * time.Second})
	default:
		c.json(http.StatusOK, "no-store", map[string]string{"status": "ready"})
	}
}

// health says why the node cannot do its work; nil: it can.
func (s *Server) health() error {
	err := s.opts.Rooms.Health()
	if err == nil && s.opts.Health != nil {
		err = s.opts.Health()
	}
	return err
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

func isAny(err error, kinds ...error) bool {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}
