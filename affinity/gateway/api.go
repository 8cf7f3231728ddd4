package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ushergo/usher/affinity"
)

// API serves a directory to programs that are not written in Go; package web/svc puts tokens in front of it.
//
//	POST   /svc/v1/affinity/{space}/{key}/claim     {"instance","epoch","addr","token","build_ms"} → 200 row | 409 not_owner | 410 claim_spent
//	POST   /svc/v1/affinity/{space}/{key}/refresh   {"instance","epoch","generation","ttl_ms","ready","session"} → 204 | 409 not_owner
//	POST   /svc/v1/affinity/{space}/{key}/clear     {"instance","epoch","generation"} → 204 | 409 not_owner
//	GET    /svc/v1/affinity/{space}/{key}           → 200 row | 404 no_session
//	POST   /svc/v1/affinity/{space}/-/refresh       {"instance","epoch","ttl_ms","items":[{"key","generation","ready","session"}]} → 200 {"held":[…]}
//	GET    /svc/v1/affinity/{space}/-/instances     → 200 {"instances":[…]}
//	PUT    /svc/v1/affinity/{space}/-/instances/{id} {"epoch","addr","sessions","max","draining","ttl_ms"} → 200 {"draining","drain_ms"} | 409 superseded
//	DELETE /svc/v1/affinity/{space}/-/instances/{id} {"epoch"} → 204
//	POST   /svc/v1/affinity/{space}/-/instances/{id}/drain {"on":true,"within_ms"} → 204 | 404 no_instance
//
// A row is {"state","instance","epoch","addr","session","generation","expires_at","at"}; numbers are below 2^53. Errors are
// application/problem+json; with 409 not_owner of a claim the row stands beside it. 503 directory_unavailable: repeat it,
// a claim with the same token.
func API(store affinity.Store) http.Handler {
	a := &api{store}
	mux := http.NewServeMux()
	routes := a.routes()
	for pattern, h := range routes {
		mux.HandleFunc(pattern, h)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if allow := allowed(routes, r.URL.EscapedPath()); allow != "" {
			w.Header().Set("Allow", allow)
			problem(w, http.StatusMethodNotAllowed, "method_not_allowed", "use "+allow, 0)
			return
		}
		problem(w, http.StatusNotFound, "not_found", "there is nothing at "+r.URL.Path+" by "+r.Method, 0)
	})
	return mux
}

func (a *api) routes() map[string]http.HandlerFunc {
	const base = " /svc/v1/affinity/{space}/"
	return map[string]http.HandlerFunc{
		"POST" + base + "{key}/claim":            a.claim,
		"POST" + base + "{key}/refresh":          a.refresh,
		"POST" + base + "{key}/clear":            a.clear,
		"GET" + base + "{key}":                   a.get,
		"POST" + base + "-/refresh":              a.refreshMany,
		"GET" + base + "-/instances":             a.instances,
		"PUT" + base + "-/instances/{id}":        a.announce,
		"DELETE" + base + "-/instances/{id}":     a.depart,
		"POST" + base + "-/instances/{id}/drain": a.drain,
	}
}

// allowed lists the methods of a path, for who used another.
func allowed(routes map[string]http.HandlerFunc, path string) string {
	var methods []string
	got := strings.Split(path, "/")
	for pattern := range routes {
		method, p, _ := strings.Cut(pattern, " ")
		if slices.EqualFunc(strings.Split(p, "/"), got, func(want, got string) bool { return want == got || strings.HasPrefix(want, "{") }) {
			methods = append(methods, method)
		}
	}
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), ", ")
}

type api struct{ store affinity.Store }

// rowDoc is a row in JSON.
type rowDoc struct {
	State      string    `json:"state"`
	Instance   string    `json:"instance"`
	Epoch      uint64    `json:"epoch"`
	Addr       string    `json:"addr"`
	Session    string    `json:"session"`
	Generation uint64    `json:"generation"`
	ExpiresAt  time.Time `json:"expires_at"`
	At         time.Time `json:"at"`
}

func docOf(r affinity.Row) rowDoc {
	return rowDoc{r.State.String(), r.Owner.Instance, r.Owner.Epoch, r.Addr, r.Session, r.Generation, r.At.Add(r.Left), r.At}
}

func (d rowDoc) row() affinity.Row {
	row := affinity.Row{
		Owner: affinity.Identity{Instance: d.Instance, Epoch: d.Epoch}, Addr: d.Addr, Session: d.Session, Generation: d.Generation,
		Left: d.ExpiresAt.Sub(d.At), At: d.At.UTC(),
	}
	for _, s := range []affinity.State{affinity.Building, affinity.Ready} {
		if s.String() == d.State {
			row.State = s
		}
	}
	return row
}

type claimDoc struct {
	Instance string `json:"instance"`
	Epoch    uint64 `json:"epoch"`
	Addr     string `json:"addr,omitempty"`
	Token    string `json:"token"`
	BuildMS  int64  `json:"build_ms,omitempty"` // default 60000
}

type itemDoc struct {
	Key        string `json:"key,omitempty"`
	Generation uint64 `json:"generation"`
	Ready      bool   `json:"ready,omitempty"`
	Session    string `json:"session,omitempty"`
}

type refreshDoc struct {
	Instance string    `json:"instance"`
	Epoch    uint64    `json:"epoch"`
	TTLms    int64     `json:"ttl_ms,omitempty"` // default 900000
	Items    []itemDoc `json:"items"`
}

type refreshOneDoc struct {
	Instance string `json:"instance"`
	Epoch    uint64 `json:"epoch"`
	TTLms    int64  `json:"ttl_ms,omitempty"`
	itemDoc
}

type clearDoc struct {
	Instance   string `json:"instance"`
	Epoch      uint64 `json:"epoch"`
	Generation uint64 `json:"generation"`
}

type instanceDoc struct {
	Instance  string     `json:"instance,omitempty"`
	Epoch     uint64     `json:"epoch"`
	Addr      string     `json:"addr,omitempty"`
	Sessions  int        `json:"sessions"`
	Max       int        `json:"max"`
	Draining  bool       `json:"draining"`
	TTLms     int64      `json:"ttl_ms,omitempty"` // default 17000
	DrainMS   int64      `json:"drain_ms,omitempty"`
	ExpiresIn int64      `json:"expires_in_ms,omitempty"`
	At        *time.Time `json:"at,omitempty"`
}

type departDoc struct {
	Epoch uint64 `json:"epoch"`
}

func ms(n int64, otherwise time.Duration) time.Duration {
	if n == 0 {
		return otherwise
	}
	return time.Duration(min(max(n, -1), 1<<40)) * time.Millisecond
}

// maxAPIBody bounds what is read; a batch of 500 with the longest keys fits.
const maxAPIBody = 1 << 20

func readDoc(w http.ResponseWriter, r *http.Request, to any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAPIBody))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	var large *http.MaxBytesError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return true
	case errors.As(err, &large):
		problem(w, http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("the body is over %d bytes", maxAPIBody), 0)
	default:
		problem(w, http.StatusBadRequest, "bad_request", "the body is not the JSON expected: "+strings.TrimPrefix(err.Error(), "json: "), 0)
	}
	return false
}

func writeDoc(w http.ResponseWriter, doc any) {
	b, err := json.Marshal(doc)
	if err != nil { // our own types
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(b, '\n'))
}

// failed answers a store's error.
func failed(w http.ResponseWriter, err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, affinity.ErrBadRequest):
		problem(w, http.StatusBadRequest, "bad_request", strings.TrimPrefix(err.Error(), affinity.ErrBadRequest.Error()+": "), 0)
	case errors.Is(err, affinity.ErrForeign):
		problem(w, http.StatusInternalServerError, "foreign_layout", err.Error(), 0)
	default:
		problem(w, http.StatusServiceUnavailable, "directory_unavailable", "the directory does not answer; repeat it, a claim with the same token", 2*time.Second)
	}
	return true
}

func notOwner(w http.ResponseWriter) {
	problem(w, http.StatusConflict, "not_owner", "the row is not of this owner and generation; the session must not be used any more", 0)
}

func (a *api) claim(w http.ResponseWriter, r *http.Request) {
	var d claimDoc
	if !readDoc(w, r, &d) {
		return
	}
	got, err := a.store.Claim(r.Context(), affinity.Claim{
		Space: r.PathValue("space"), Key: r.PathValue("key"), Owner: affinity.Identity{Instance: d.Instance, Epoch: d.Epoch},
		Addr: d.Addr, Token: d.Token, Build: ms(d.BuildMS, time.Minute),
	})
	if failed(w, err) {
		return
	}
	switch got.Verdict {
	case affinity.Yours:
		writeDoc(w, docOf(got.Row))
	case affinity.Theirs:
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"type": "about:blank", "title": "Conflict", "status": 409, "code": "not_owner", "detail": "another instance has the session", "row": docOf(got.Row),
		})
	default:
		w.Header().Set("Usher-At", got.Row.At.Format(time.RFC3339Nano))
		problem(w, http.StatusGone, "claim_spent", "the claim of this token is over; make another with a new token", 0)
	}
}

func (a *api) many(r *http.Request, d refreshDoc) (affinity.Refreshed, error) {
	cmd := affinity.Refresh{Space: r.PathValue("space"), Owner: affinity.Identity{Instance: d.Instance, Epoch: d.Epoch}, TTL: ms(d.TTLms, 15*time.Minute)}
	for _, it := range d.Items {
		cmd.Items = append(cmd.Items, affinity.Item{Key: it.Key, Generation: it.Generation, Ready: it.Ready, Session: it.Session})
	}
	return a.store.Refresh(r.Context(), cmd)
}

func (a *api) refresh(w http.ResponseWriter, r *http.Request) {
	var d refreshOneDoc
	if !readDoc(w, r, &d) {
		return
	}
	d.Key = r.PathValue("key")
	got, err := a.many(r, refreshDoc{d.Instance, d.Epoch, d.TTLms, []itemDoc{d.itemDoc}})
	if failed(w, err) {
		return
	}
	if !got.Held[0] {
		notOwner(w)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

type heldDoc struct {
	Held []bool    `json:"held"`
	At   time.Time `json:"at"`
}

func (a *api) refreshMany(w http.ResponseWriter, r *http.Request) {
	var d refreshDoc
	if !readDoc(w, r, &d) {
		return
	}
	got, err := a.many(r, d)
	if !failed(w, err) {
		writeDoc(w, heldDoc{got.Held, got.At})
	}
}

func (a *api) clear(w http.ResponseWriter, r *http.Request) {
	var d clearDoc
	if !readDoc(w, r, &d) {
		return
	}
	got, err := a.store.Clear(r.Context(), affinity.Clear{
		Space: r.PathValue("space"), Key: r.PathValue("key"), Owner: affinity.Identity{Instance: d.Instance, Epoch: d.Epoch}, Generation: d.Generation,
	})
	if failed(w, err) {
		return
	}
	w.Header().Set("Usher-At", got.At.Format(time.RFC3339Nano))
	if !got.Cleared {
		notOwner(w)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *api) get(w http.ResponseWriter, r *http.Request) {
	row, err := a.store.Get(r.Context(), r.PathValue("space"), r.PathValue("key"))
	if failed(w, err) {
		return
	}
	if row.State == affinity.None {
		w.Header().Set("Usher-At", row.At.Format(time.RFC3339Nano))
		problem(w, http.StatusNotFound, "no_session", "nobody has a session of this key", 0)
		return
	}
	writeDoc(w, docOf(row))
}

func (a *api) instances(w http.ResponseWriter, r *http.Request) {
	list, err := a.store.Instances(r.Context(), r.PathValue("space"))
	if failed(w, err) {
		return
	}
	docs := []instanceDoc{}
	for _, in := range list {
		docs = append(docs, instanceDoc{
			Instance: in.Owner.Instance, Epoch: in.Owner.Epoch, Addr: in.Addr, Sessions: in.Sessions, Max: in.Max,
			Draining: in.Draining, ExpiresIn: max(in.Left.Milliseconds(), 1),
		})
	}
	writeDoc(w, map[string]any{"instances": docs})
}

func (a *api) announce(w http.ResponseWriter, r *http.Request) {
	var d instanceDoc
	if !readDoc(w, r, &d) {
		return
	}
	got, err := a.store.Announce(r.Context(), affinity.Announce{
		Space: r.PathValue("space"), Owner: affinity.Identity{Instance: r.PathValue("id"), Epoch: d.Epoch}, Addr: d.Addr,
		Sessions: d.Sessions, Max: d.Max, Draining: d.Draining, TTL: ms(d.TTLms, 17*time.Second),
	})
	if failed(w, err) {
		return
	}
	if got.Superseded {
		problem(w, http.StatusConflict, "superseded", "a later start of this instance lives; this one must stop", 0)
		return
	}
	writeDoc(w, instanceDoc{Instance: r.PathValue("id"), Epoch: d.Epoch, Draining: got.Draining, DrainMS: got.DrainFor.Milliseconds(), At: &got.At})
}

func (a *api) depart(w http.ResponseWriter, r *http.Request) {
	var d departDoc
	if !readDoc(w, r, &d) {
		return
	}
	got, err := a.store.Announce(r.Context(), affinity.Announce{Space: r.PathValue("space"), Owner: affinity.Identity{Instance: r.PathValue("id"), Epoch: d.Epoch}})
	if failed(w, err) {
		return
	}
	if got.Superseded {
		problem(w, http.StatusConflict, "superseded", "a later start of this instance lives; it was left alone", 0)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *api) drain(w http.ResponseWriter, r *http.Request) {
	d := struct {
		On       bool  `json:"on"`
		WithinMS int64 `json:"within_ms"`
	}{On: true}
	if !readDoc(w, r, &d) {
		return
	}
	known, err := a.store.Drain(r.Context(), affinity.Drain{Space: r.PathValue("space"), Instance: r.PathValue("id"), On: d.On, For: ms(d.WithinMS, 0)})
	if failed(w, err) {
		return
	}
	if !known {
		problem(w, http.StatusNotFound, "no_instance", "no living instance has this name", 0)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
