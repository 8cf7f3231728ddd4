package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ushergo/usher/affinity"
)

// Route is a route to instances that hold sessions.
type Route struct {
	ID     string
	Space  string              // of the directory
	Static []affinity.Instance // those that do not announce themselves
}

// instanceDoc is an instance as the admin API shows it.
type instanceDoc struct {
	Instance string `json:"instance"`
	Addr     string `json:"addr"`
	Sessions int    `json:"sessions"`
	Max      int    `json:"max"` // 0: no limit of its own
	Draining bool   `json:"draining"`
	Static   bool   `json:"static"` // from the configuration file; it announces nothing
}

func (c *call) noDirectory() {
	c.fail(&problem{status: 503, code: "directory_unavailable", detail: "the directory of sessions does not answer; sessions go on", retry: 2 * time.Second})
}

func (s *Server) routeList() []Route {
	if s.opts.Routes == nil || s.opts.Directory == nil {
		return nil
	}
	return s.opts.Routes()
}

// routes lists the routes with the instances that live.
func (c *call) routes() {
	type routeDoc struct {
		ID        string        `json:"id"`
		Space     string        `json:"space"`
		Instances []instanceDoc `json:"instances"`
	}
	docs := []routeDoc{}
	for _, rt := range c.s.routeList() {
		list, err := c.s.opts.Directory.Instances(c.ctx, rt.Space)
		if err != nil {
			c.noDirectory()
			return
		}
		doc := routeDoc{rt.ID, rt.Space, []instanceDoc{}}
		for _, in := range list {
			doc.Instances = append(doc.Instances, instanceDoc{in.Owner.Instance, in.Addr, in.Sessions, in.Max, in.Draining, false})
		}
		for _, in := range rt.Static {
			doc.Instances = append(doc.Instances, instanceDoc{in.Owner.Instance, in.Addr, 0, in.Max, false, true})
		}
		docs = append(docs, doc)
	}
	c.json(http.StatusOK, "no-store", map[string]any{"routes": docs})
}

// drainInstance makes an instance take no new sessions, and end those that it has within a deadline.
func (c *call) drainInstance() {
	body, p := c.body(4 << 10)
	if p != nil {
		c.fail(p)
		return
	}
	bad := func(detail string) { c.fail(&problem{status: 400, code: "bad_request", detail: detail}) }
	doc := struct {
		Instance string `json:"instance"`
		On       bool   `json:"on"`
		WithinMS int64  `json:"within_ms"`
	}{On: true}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil || d.More() || doc.Instance == "" {
		bad(`send {"instance": "…", "on": true, "within_ms": 300000}; without within_ms it is what the instance says`)
		return
	}
	if doc.WithinMS < 0 || doc.WithinMS > (24*time.Hour).Milliseconds() {
		bad("within_ms: " + strconv.FormatInt(doc.WithinMS, 10) + " is out of bounds; use 1 to 86400000, or leave it out")
		return
	}
	for _, rt := range c.s.routeList() {
		if rt.ID != c.id {
			continue
		}
		known, err := c.s.opts.Directory.Drain(c.ctx, affinity.Drain{
			Space: rt.Space, Instance: doc.Instance, On: doc.On, For: time.Duration(doc.WithinMS) * time.Millisecond,
		})
		switch {
		case errors.Is(err, affinity.ErrBadRequest):
			bad(err.Error())
		case err != nil:
			c.noDirectory()
		case !known:
			c.fail(&problem{status: 404, code: "instance_not_found", detail: "no instance of that name announces itself; one that only the file names is drained by taking it out of the file"})
		default:
			c.s.log.Info("an instance was asked to drain by the admin API", "route", c.id, "instance", doc.Instance, "on", doc.On, "within_ms", doc.WithinMS)
			c.w.WriteHeader(http.StatusNoContent)
		}
		return
	}
	c.fail(&problem{status: 404, code: "route_not_found", detail: "there is no route of that id; GET /admin/v1/routes lists them"})
}
