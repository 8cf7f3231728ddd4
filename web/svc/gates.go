package svc

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/ushergo/usher/gate"
)

func (s *Server) gates() {
	const key = "/svc/v1/gates/{key}"
	s.methods(key, map[string]http.HandlerFunc{"GET": s.gateStatus, "PUT": s.gateSet, "DELETE": s.gateDelete})
	for path, h := range map[string]http.HandlerFunc{
		"/acquire": s.gateAcquire, "/release": s.gateRelease, "/extend": s.gateExtend, "/settle": s.gateSettle, "/reopen": s.gateReopen,
	} {
		s.methods(key+path, map[string]http.HandlerFunc{"POST": h})
	}
}

// gateDoc is how a gate's key stands.
type gateDoc struct {
	Key     string      `json:"key"`
	Permits int64       `json:"permits"`
	Free    int64       `json:"free"`
	Held    int64       `json:"held"`
	Waiting int         `json:"waiting"` // on this node
	Settled *settledDoc `json:"settled"`
	At      string      `json:"at"`
}

type settledDoc struct {
	Verdict     string `json:"verdict"`
	Fence       uint64 `json:"fence"`
	ExpiresInMS int64  `json:"expires_in_ms"`
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func statusDoc(key string, st gate.Status) gateDoc {
	doc := gateDoc{Key: key, Permits: st.Permits, Free: st.Free, Held: st.Held, Waiting: st.Waiting, At: stamp(st.At)}
	if v := st.Verdict; v != nil {
		doc.Settled = &settledDoc{v.Verdict, v.Fence, v.Left.Milliseconds()}
	}
	return doc
}

// gateProblem is the answer to what a gate said.
func (s *Server) gateProblem(key string, err error) *problem {
	var full *gate.FullError
	var settled *gate.SettledError
	switch {
	case errors.As(err, &full):
		retry := min(max(full.After, time.Second), time.Minute)
		return &problem{status: 429, code: "gate_full", detail: err.Error(), retry: retry}
	case errors.As(err, &settled):
		return &problem{status: 409, code: "gate_settled", detail: "the key is closed, with this verdict", more: map[string]any{
			"verdict": settled.Verdict, "fence": settled.Fence, "expires_in_ms": settled.Left.Milliseconds(),
		}}
	case errors.Is(err, gate.ErrNotSet):
		return &problem{status: 404, code: "gate_not_found", detail: "nobody said how many permits " + key + " has; PUT {\"permits\":20}, or give \"permits\" when acquiring"}
	case errors.Is(err, gate.ErrExpired):
		return &problem{status: 410, code: "permit_expired", detail: "the permit's lease had ended, or the id is not known"}
	case errors.Is(err, gate.ErrReleased):
		return &problem{status: 410, code: "permit_released", detail: "the permit of this id was given back; acquire with a new id"}
	case errors.Is(err, gate.ErrStale):
		return &problem{status: 409, code: "gate_reopened", detail: "the key was reopened after that permit was granted, or the fence is not its"}
	case errors.Is(err, gate.ErrBadRequest):
		return &problem{status: 400, code: "bad_request", detail: err.Error()}
	case errors.Is(err, gate.ErrUnknown):
		return &problem{status: 503, code: "outcome_unknown", retry: time.Second, detail: "the answer of the engine was lost; repeat the request with the same id"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, gate.ErrClosed):
		return &problem{status: 503, code: "stopping", retry: time.Second, detail: "the request was ended here; ask again, with the same id"}
	}
	s.opts.Logger.Error("a gate does not answer", "key", key, "err", err)
	return &problem{status: 503, code: "engine_unavailable", retry: 2 * time.Second, detail: "the engine does not take commands now; nothing was done"}
}

func (s *Server) gateStatus(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("key")
	st, err := s.opts.Gate.Status(r.Context(), key)
	if err == nil && !st.Set {
		err = gate.ErrNotSet
	}
	if err != nil {
		fail(w, s.gateProblem(key, err))
		return
	}
	answer(w, 200, "application/json", statusDoc(key, st))
}

func (s *Server) gateSet(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Permits *int `json:"permits"`
	}
	if p := read(w, r, &in); p != nil {
		fail(w, p)
		return
	}
	if in.Permits == nil {
		fail(w, &problem{status: 400, code: "bad_request", detail: `permits is missing; write {"permits":20}`})
		return
	}
	key := r.PathValue("key")
	st, err := s.opts.Gate.Set(r.Context(), key, *in.Permits)
	if err != nil {
		fail(w, s.gateProblem(key, err))
		return
	}
	answer(w, 200, "application/json", statusDoc(key, st))
}

func (s *Server) gateDelete(w http.ResponseWriter, r *http.Request) {
	if err := s.opts.Gate.Delete(r.Context(), r.PathValue("key")); err != nil {
		fail(w, s.gateProblem(r.PathValue("key"), err))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// permitDoc is a permit as its holder gets it.
type permitDoc struct {
	ID        string `json:"id"`
	Fence     uint64 `json:"fence"`
	ExpiresAt string `json:"expires_at"`
	N         int    `json:"n"`
	Again     bool   `json:"again"` // granted by an earlier acquire with this id
}

const maxWait = time.Minute

func (s *Server) gateAcquire(w http.ResponseWriter, r *http.Request) {
	in := struct {
		LeaseMS *int64  `json:"lease_ms"`
		WaitMS  *int64  `json:"wait_ms"`
		ID      *string `json:"id"`
		N       *int    `json:"n"`
		Permits int     `json:"permits"`
	}{}
	if p := read(w, r, &in); p != nil {
		fail(w, p)
		return
	}
	opts, id, p := acquireOptions(in.LeaseMS, in.WaitMS, in.ID, in.N, in.Permits)
	if p != nil {
		fail(w, p)
		return
	}
	key := r.PathValue("key")
	permit, err := s.opts.Gate.Acquire(r.Context(), key, append(opts, gate.As(id))...)
	if err != nil {
		fail(w, s.gateProblem(key, err))
		return
	}
	if r.Context().Err() != nil && in.ID == nil { // gone, and cannot ask again: nobody would give it back
		_ = permit.Release(r.Context())
		return
	}
	answer(w, 200, "application/json", permitDoc{id.String(), permit.Fence(), stamp(permit.Expires()), permit.N(), permit.Again()})
}

func acquireOptions(leaseMS, waitMS *int64, text *string, n *int, permits int) (opts []gate.Option, id gate.ID, p *problem) {
	bad := func(detail string) *problem { return &problem{status: 400, code: "bad_request", detail: detail} }
	lease, wait := gate.DefaultLease, gate.DefaultWait
	if leaseMS != nil {
		if *leaseMS < 1 || *leaseMS > gate.MaxLease.Milliseconds() {
			return nil, id, bad("lease_ms must be 1 to 86400000")
		}
		lease = time.Duration(*leaseMS) * time.Millisecond
	}
	if waitMS != nil {
		if *waitMS < 0 || *waitMS > maxWait.Milliseconds() {
			return nil, id, bad("wait_ms must be 0 to 60000")
		}
		wait = time.Duration(*waitMS) * time.Millisecond
	}
	if text == nil {
		rand.Read(id[:])
	} else if id, p = readID(*text); p != nil {
		return nil, id, p
	}
	opts = []gate.Option{gate.Lease(lease), gate.Wait(wait)}
	if n != nil {
		opts = append(opts, gate.N(*n))
	}
	if permits != 0 {
		opts = append(opts, gate.Permits(permits))
	}
	return opts, id, nil
}

func readID(text string) (gate.ID, *problem) {
	id, err := gate.ParseID(text)
	if err != nil {
		return id, &problem{status: 400, code: "bad_request", detail: "id: " + err.Error()}
	}
	return id, nil
}

func (s *Server) gateRelease(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID string `json:"id"`
	}
	p := read(w, r, &in)
	var id gate.ID
	if p == nil {
		id, p = readID(in.ID)
	}
	if p == nil {
		if err := s.opts.Gate.Release(r.Context(), r.PathValue("key"), id); err != nil {
			p = s.gateProblem(r.PathValue("key"), err)
		}
	}
	if p != nil {
		fail(w, p)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) gateExtend(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID      string `json:"id"`
		LeaseMS *int64 `json:"lease_ms"`
	}
	p := read(w, r, &in)
	var id gate.ID
	if p == nil {
		id, p = readID(in.ID)
	}
	lease := gate.DefaultLease
	if p == nil && in.LeaseMS != nil {
		if *in.LeaseMS < 1 || *in.LeaseMS > gate.MaxLease.Milliseconds() {
			p = &problem{status: 400, code: "bad_request", detail: "lease_ms must be 1 to 86400000"}
		}
		lease = time.Duration(*in.LeaseMS) * time.Millisecond
	}
	var expires time.Time
	if p == nil {
		var err error
		if expires, _, err = s.opts.Gate.Extend(r.Context(), r.PathValue("key"), id, lease); err != nil {
			p = s.gateProblem(r.PathValue("key"), err)
		}
	}
	if p != nil {
		fail(w, p)
		return
	}
	answer(w, 200, "application/json", map[string]any{"id": id.String(), "expires_at": stamp(expires)})
}

func (s *Server) gateSettle(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID      string `json:"id"`
		Fence   uint64 `json:"fence"`
		Verdict string `json:"verdict"`
		TTLMS   int64  `json:"ttl_ms"`
	}
	p := read(w, r, &in)
	var id gate.ID
	if p == nil {
		id, p = readID(in.ID)
	}
	switch {
	case p != nil:
	case in.TTLMS < 1 || in.TTLMS > gate.MaxTTL.Milliseconds():
		p = &problem{status: 400, code: "bad_request", detail: "ttl_ms must be 1 to 60000"}
	case len(in.Verdict) > gate.MaxVerdict || !utf8.ValidString(in.Verdict):
		p = &problem{status: 400, code: "bad_request", detail: "verdict must be text of at most 1024 bytes"}
	default:
		err := s.opts.Gate.Settle(r.Context(), r.PathValue("key"), id, in.Fence, in.Verdict, time.Duration(in.TTLMS)*time.Millisecond)
		if err != nil {
			p = s.gateProblem(r.PathValue("key"), err)
		}
	}
	if p != nil {
		fail(w, p)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) gateReopen(w http.ResponseWriter, r *http.Request) {
	fence, err := s.opts.Gate.Reopen(r.Context(), r.PathValue("key"))
	if err != nil {
		fail(w, s.gateProblem(r.PathValue("key"), err))
		return
	}
	answer(w, 200, "application/json", map[string]any{"fence": fence})
}
