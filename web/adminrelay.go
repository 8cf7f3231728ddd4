package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ushergo/usher/relay"
)

// Relays are those of this node's configuration.
type Relays interface {
	List() []*relay.Relay
	Get(id string) (*relay.Relay, bool)
}

// ofRelay calls handle with the relay that the path names.
func (c *call) ofRelay(handle func(*call, *relay.Relay)) {
	if c.s.opts.Relays != nil {
		if r, ok := c.s.opts.Relays.Get(c.id); ok {
			handle(c, r)
			return
		}
	}
	c.fail(&problem{status: 404, code: "relay_not_found", detail: "there is no relay of that id; GET /admin/v1/relays lists them"})
}

// relayFailed is for what the stores of a relay do not answer.
func (c *call) relayFailed(err error) {
	c.s.log.Warn("a relay's store did not answer the admin API", "relay", c.id, "err", err)
	c.fail(&problem{status: 503, code: "relay_unavailable", detail: "the relay's cursors or dead letters cannot be reached: " + err.Error(), retry: 2 * time.Second})
}

func (c *call) listRelays() {
	list := []relay.Status{}
	if c.s.opts.Relays != nil {
		for _, r := range c.s.opts.Relays.List() {
			s, err := r.Status(c.ctx)
			if err != nil {
				c.relayFailed(err)
				return
			}
			list = append(list, s)
		}
	}
	c.json(http.StatusOK, "no-store", map[string]any{"relays": list})
}

func (c *call) getRelay(r *relay.Relay) {
	s, err := r.Status(c.ctx)
	if err != nil {
		c.relayFailed(err)
		return
	}
	c.json(http.StatusOK, "no-store", s)
}

func (c *call) pauseRelay(r *relay.Relay)  { c.steer("paused", r.Pause(c.ctx)) }
func (c *call) resumeRelay(r *relay.Relay) { c.steer("resumed", r.Resume(c.ctx)) }

func (c *call) steer(what string, err error) {
	if err != nil {
		c.relayFailed(err)
		return
	}
	c.s.log.Info("a relay was steered by the admin API", "relay", c.id, "what", what)
	c.w.WriteHeader(http.StatusNoContent)
}

// document decodes a JSON body strictly; usage says how it is written.
func (c *call) document(doc any, usage string) bool {
	body, p := c.body(1 << 20)
	if p != nil {
		c.fail(p)
		return false
	}
	if len(body) == 0 {
		body = []byte("{}")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(doc); err != nil || d.More() {
		c.fail(&problem{status: 400, code: "bad_request", detail: usage})
		return false
	}
	return true
}

func (c *call) seekRelay(r *relay.Relay) {
	const usage = `send {"to": "oldest"}, {"to": "newest"}, {"at": "2026-12-04T10:00:00Z"} or {"after": "1.42"}`
	var doc struct {
		To    string    `json:"to"`
		At    time.Time `json:"at"`
		After string    `json:"after"`
	}
	if !c.document(&doc, usage) {
		return
	}
	given := 0
	for _, is := range []bool{doc.To != "", !doc.At.IsZero(), doc.After != ""} {
		if is {
			given++
		}
	}
	if given != 1 || doc.To != "" && doc.To != "oldest" && doc.To != "newest" {
		c.fail(&problem{status: 400, code: "bad_request", detail: usage})
		return
	}
	if doc.At.After(time.Now().Add(time.Minute)) { // its clock may be ahead of ours
		c.fail(&problem{status: 400, code: "bad_request", detail: "at is in the future: nothing would be carried until then; give a time that has been, or pause the relay"})
		return
	}
	err := r.Seek(c.ctx, relay.From{Newest: doc.To == "newest", At: doc.At, After: relay.Position(doc.After)})
	if errors.Is(err, relay.ErrManyPartitions) {
		c.fail(&problem{status: 409, code: "many_partitions", detail: err.Error()})
		return
	}
	c.steer("moved", err)
}

func (c *call) listLetters(r *relay.Relay) {
	q := c.r.URL.Query()
	number := func(name string, otherwise, least, most uint64) (uint64, bool) {
		text := q.Get(name)
		if text == "" {
			return otherwise, true
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n < least {
			c.fail(&problem{status: 400, code: "bad_request", detail: name + " is not a number of at least " + strconv.FormatUint(least, 10)})
			return 0, false
		}
		return min(n, most), true
	}
	after, ok := number("after", 0, 0, 1<<63)
	if !ok {
		return
	}
	limit, ok := number("limit", 100, 1, 1000)
	if !ok {
		return
	}
	list, err := r.Letters().List(c.ctx, c.id, after, int(limit))
	if err != nil {
		c.relayFailed(err)
		return
	}
	if list == nil {
		list = []relay.Letter{}
	}
	next := after
	if len(list) > 0 {
		next = list[len(list)-1].Seq
	}
	c.json(http.StatusOK, "no-store", map[string]any{"letters": list, "next": next})
}

func (c *call) getLetter(r *relay.Relay) {
	id := c.r.URL.Query().Get("event")
	if id == "" {
		c.fail(&problem{status: 400, code: "bad_request", detail: "?event= is missing: the id of the letter's event"})
		return
	}
	l, err := r.Letters().Get(c.ctx, c.id, id)
	switch {
	case errors.Is(err, relay.ErrNoLetter):
		c.fail(&problem{status: 404, code: "letter_not_found", detail: "there is no dead letter for that event"})
	case err != nil:
		c.relayFailed(err)
	default:
		c.json(http.StatusOK, "no-store", l)
	}
}

// redriveTime is how long one call brings letters back; whoever wants more asks again.
const redriveTime = 20 * time.Second

func (c *call) redriveLetters(r *relay.Relay) {
	doc := struct {
		IDs       []string  `json:"ids"`
		PerSecond float64   `json:"per_second"`
		Limit     int       `json:"limit"`
		Before    time.Time `json:"before"`
	}{PerSecond: 50, Limit: 100}
	const usage = `send {"ids": ["premiere/1.42"], "per_second": 50, "limit": 100, "before": "2030-06-01T10:00:00Z"}; without ids it is all that failed last before that time, by default now`
	if !c.document(&doc, usage) {
		return
	}
	if doc.PerSecond <= 0 || doc.PerSecond > 10_000 || doc.Limit < 1 || doc.Limit > 1000 || len(doc.IDs) > 1000 {
		c.fail(&problem{status: 400, code: "bad_request", detail: "per_second: up to 10000; limit: 1 to 1000; ids: at most 1000"})
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, redriveTime)
	defer cancel()
	out, err := r.Redrive(ctx, relay.Redrive{IDs: doc.IDs, PerSecond: doc.PerSecond, Limit: doc.Limit, Before: doc.Before})
	switch {
	case errors.Is(err, relay.ErrRedriving):
		c.fail(&problem{status: 409, code: "redriving", detail: "dead letters of this relay are being brought back already; wait until that is done", retry: time.Second})
		return
	case err != nil && out == (relay.Redriven{}) && c.ctx.Err() == nil && ctx.Err() == nil:
		c.relayFailed(err)
		return
	}
	stats, serr := r.Letters().Stats(c.ctx, c.id)
	if serr != nil {
		c.relayFailed(serr)
		return
	}
	answer := map[string]any{"taken": out.Taken, "failed": out.Failed, "left": stats.Letters}
	if err != nil && ctx.Err() == nil {
		answer["stopped"] = err.Error()
	}
	c.s.log.Info("dead letters were brought back by the admin API", "relay", c.id, "taken", out.Taken, "failed", out.Failed, "left", stats.Letters)
	c.json(http.StatusOK, "no-store", answer)
}

func (c *call) dropLetters(r *relay.Relay) {
	var doc struct {
		IDs []string `json:"ids"`
	}
	const usage = `send {"ids": ["premiere/1.42"]}, at most 1000`
	if !c.document(&doc, usage) {
		return
	}
	if len(doc.IDs) == 0 || len(doc.IDs) > 1000 {
		c.fail(&problem{status: 400, code: "bad_request", detail: usage})
		return
	}
	n, err := r.Letters().Drop(c.ctx, c.id, doc.IDs...)
	if err != nil {
		c.relayFailed(err)
		return
	}
	c.s.log.Warn("dead letters were dropped by the admin API", "relay", c.id, "letters", n)
	c.json(http.StatusOK, "no-store", map[string]any{"dropped": n})
}
