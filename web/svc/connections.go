package svc

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/lease"
)

// Connections are what the API for connections needs.
type Connections struct {
	// Store has the connections. Required.
	Store lease.Store
	// Live tells of those that this node holds. Default: it holds none.
	Live func() []keeper.Status
	// Wake makes this node's worker look at a change at once. Default: it finds it.
	Wake func()
	// Advice is how many workers there should be. Default: nobody says.
	Advice func() keeper.Advice
}

const maxSpecBody = 96 << 10

func (s *Server) connections() {
	s.methods("/svc/v1/connections", map[string]http.HandlerFunc{"GET": s.connectionList})
	s.methods("/svc/v1/connections/{id...}", map[string]http.HandlerFunc{
		"GET": s.connectionGet, "PUT": s.connectionPut, "DELETE": s.connectionDelete,
	})
	s.methods("/svc/v1/keeper", map[string]http.HandlerFunc{"GET": s.keeperStatus})
}

// connectionDoc is a connection as the API shows it: without the values of its headers.
type connectionDoc struct {
	ID           string            `json:"id"`
	URL          string            `json:"url"`
	HeaderNames  []string          `json:"header_names"`
	Subprotocols []string          `json:"subprotocols"`
	Desired      lease.Desired     `json:"desired"`
	Cursor       keeper.CursorRule `json:"cursor"`
	Resume       keeper.Resume     `json:"resume"`
	Revision     uint64            `json:"revision"`
	Owner        *ownerDoc         `json:"owner"`
	Fence        uint64            `json:"fence"`
	LastSeq      int64             `json:"last_seq"`
	Problem      string            `json:"problem,omitempty"`
	Live         *liveDoc          `json:"live"`
}

type ownerDoc struct {
	Worker     string `json:"worker"`
	Generation uint64 `json:"generation"`
}

// liveDoc is how the worker that holds a connection sees it; only that worker's node knows.
type liveDoc struct {
	State      keeper.State `json:"state"`
	Since      string       `json:"since"`
	Error      string       `json:"error,omitempty"`
	Fence      uint64       `json:"fence"`
	LastSeq    int64        `json:"last_seq"` // stored; the cursor follows within a second
	Pending    int          `json:"pending"`
	LagMS      int64        `json:"lag_ms"`
	Blocked    bool         `json:"blocked"`
	PerSecond  float64      `json:"messages_per_second"`
	Received   int64        `json:"received"`
	Duplicates int64        `json:"duplicates"`
	Skipped    int64        `json:"skipped"`
	Opened     int64        `json:"opened"`
}

func connectionOf(r lease.Row, live map[string]keeper.Status) connectionDoc {
	doc := connectionDoc{ID: r.ID, URL: r.URL, Desired: r.Desired, Revision: r.Rev, Fence: r.Fence, HeaderNames: []string{}, Subprotocols: []string{}}
	spec, err := keeper.SpecOf(r.URL, r.Desired, r.Spec)
	if err != nil {
		doc.Problem = err.Error()
	}
	for name := range spec.Headers {
		doc.HeaderNames = append(doc.HeaderNames, name)
	}
	slices.Sort(doc.HeaderNames)
	doc.Subprotocols = append(doc.Subprotocols, spec.Subprotocols...)
	doc.Cursor, doc.Resume = spec.Cursor, spec.Resume
	if r.Owner != (lease.Owner{}) {
		doc.Owner = &ownerDoc{r.Owner.Worker, r.Owner.Generation}
	}
	if r.Cursor != "" {
		if doc.LastSeq, err = strconv.ParseInt(r.Cursor, 10, 64); err != nil {
			doc.Problem = "the cursor " + strconv.Quote(r.Cursor) + " is no whole number"
		}
	}
	if st, ok := live[r.ID]; ok {
		doc.Live = &liveDoc{
			State: st.State, Since: stamp(st.Since), Error: st.Err, Fence: st.Fence, LastSeq: st.Seq, Pending: st.Pending, LagMS: st.Lag.Milliseconds(),
			Blocked: st.Blocked, PerSecond: float64(int64(st.PerSecond*100)) / 100, Received: st.Received, Duplicates: st.Duplicates, Skipped: st.Skipped, Opened: st.Opened,
		}
	}
	return doc
}

func (s *Server) live() map[string]keeper.Status {
	if s.opts.Connections.Live == nil {
		return nil
	}
	m := map[string]keeper.Status{}
	for _, st := range s.opts.Connections.Live() {
		m[st.ID] = st
	}
	return m
}

// leaseProblem is the answer to what a store said.
func (s *Server) leaseProblem(err error) *problem {
	switch {
	case errors.Is(err, lease.ErrBadRequest), errors.Is(err, keeper.ErrBadRequest):
		text := err.Error()
		for _, known := range []error{lease.ErrBadRequest, keeper.ErrBadRequest} {
			text = strings.TrimPrefix(text, known.Error()+": ")
		}
		return &problem{status: 400, code: "bad_request", detail: text}
	case errors.Is(err, lease.ErrUnknown):
		return &problem{status: 503, code: "outcome_unknown", retry: time.Second, detail: "the answer of the engine was lost; repeat the request"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &problem{status: 503, code: "stopping", retry: time.Second, detail: "the request was ended here; ask again"}
	}
	s.opts.Logger.Error("the store of connections does not answer", "err", err)
	return &problem{status: 503, code: "engine_unavailable", retry: 2 * time.Second, detail: "the engine does not take commands now; nothing was done"}
}

func (s *Server) row(ctx context.Context, id string) (lease.Row, bool, *problem) {
	if err := lease.CheckID(id); err != nil {
		return lease.Row{}, false, s.leaseProblem(err)
	}
	rows, err := s.opts.Connections.Store.Get(ctx, []string{id})
	if err != nil {
		return lease.Row{}, false, s.leaseProblem(err)
	}
	if len(rows) == 0 {
		return lease.Row{}, false, nil
	}
	return rows[0], true, nil
}

func noConnection(id string) *problem {
	return &problem{status: 404, code: "connection_not_found", detail: "there is no connection " + id + "; PUT makes one"}
}

func (s *Server) connectionGet(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	row, there, p := s.row(r.Context(), id)
	if p == nil && !there {
		p = noConnection(id)
	}
	if p != nil {
		fail(w, p)
		return
	}
	answer(w, 200, "application/json", connectionOf(row, s.live()))
}

func (s *Server) connectionPut(w http.ResponseWriter, r *http.Request) {
	var in struct {
		keeper.Spec
		Headers *map[string]string `json:"headers"`
	}
	id := r.PathValue("id")
	p := readUpTo(w, r, &in, maxSpecBody)
	var before lease.Row
	var there bool
	if p == nil {
		before, there, p = s.row(r.Context(), id)
	}
	if p != nil {
		fail(w, p)
		return
	}
	spec := in.Spec
	if spec.Desired == "" {
		spec.Desired = lease.Started
	}
	switch {
	case in.Headers != nil:
		spec.Headers = *in.Headers
	case there: // nobody is shown them, so whoever changes something else cannot send them again
		if old, err := keeper.SpecOf(before.URL, before.Desired, before.Spec); err == nil {
			spec.Headers = old.Headers
		}
	}
	put, err := spec.Put(id)
	var row lease.Row
	if err == nil {
		row, err = s.opts.Connections.Store.Put(r.Context(), put)
	}
	if err != nil {
		fail(w, s.leaseProblem(err))
		return
	}
	s.wake()
	status := 200
	if !there {
		status = 201
	}
	answer(w, status, "application/json", connectionOf(row, s.live()))
}

func (s *Server) wake() {
	if s.opts.Connections.Wake != nil {
		s.opts.Connections.Wake()
	}
}

func (s *Server) connectionDelete(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	err := lease.CheckID(id)
	var there bool
	if err == nil {
		there, err = s.opts.Connections.Store.Delete(r.Context(), id)
	}
	switch {
	case err != nil:
		fail(w, s.leaseProblem(err))
	case !there:
		fail(w, noConnection(id))
	default:
		s.wake()
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *Server) connectionList(w http.ResponseWriter, r *http.Request) {
	limit := 100
	if text := r.FormValue("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > lease.MaxList {
			fail(w, &problem{status: 400, code: "bad_request", detail: "limit must be 1 to " + strconv.Itoa(lease.MaxList)})
			return
		}
		limit = n
	}
	rows, next, err := s.opts.Connections.Store.List(r.Context(), r.FormValue("after"), limit)
	if err != nil {
		fail(w, s.leaseProblem(err))
		return
	}
	live := s.live()
	docs := make([]connectionDoc, len(rows))
	for i, row := range rows {
		docs[i] = connectionOf(row, live)
	}
	answer(w, 200, "application/json", map[string]any{"connections": docs, "next": next, "at": stamp(time.Now())})
}

// workerDoc is a worker as the others see it.
type workerDoc struct {
	Worker      string `json:"worker"`
	Generation  uint64 `json:"generation"`
	Connections int    `json:"connections"` // as of its last beat
	Cap         int    `json:"cap"`
	State       string `json:"state"` // living, leaving or dead
	// Told is what it said with its last beat; null until then, and of the dead.
	Told *keeper.Told `json:"told"`
}

func (s *Server) keeperStatus(w http.ResponseWriter, r *http.Request) {
	rows, err := s.opts.Connections.Store.Workers(r.Context())
	if err != nil {
		fail(w, s.leaseProblem(err))
		return
	}
	docs := []workerDoc{}
	for _, row := range rows {
		d := workerDoc{Worker: row.Worker, Generation: row.Generation, Connections: row.Held, Cap: row.Cap, State: "living"}
		if told, ok := keeper.ReadTold(row.Info); ok && !row.Dead {
			d.Told = &told
		}
		switch {
		case row.Dead:
			d.State, d.Connections = "dead", 0
		case row.Leaving:
			d.State = "leaving"
		}
		docs = append(docs, d)
	}
	doc := map[string]any{"workers": docs, "advice": nil, "at": stamp(time.Now())}
	if s.opts.Connections.Advice != nil {
		if a := s.opts.Connections.Advice(); a.Cap > 0 { // it has looked
			doc["advice"] = a
		}
	}
	answer(w, 200, "application/json", doc)
}
