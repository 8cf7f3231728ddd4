package kubernetes_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// apiServer speaks the list and watch protocol of pods, and can be told to
// misbehave. What it does when all is well is checked against the real one in
// deploy/kubernetes/apitest.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex
	version int
	pods    map[string]pod
	history []event // of every version
	page    int     // pods in a page; 0: all
	refuse  func(w http.ResponseWriter, r *http.Request) bool
	mute    bool          // open watches say nothing and do not end; later ones too
	changed chan struct{} // closed at each change
	lists   int
	asked   []string // query of each request
}

type pod struct {
	name    string
	phase   string
	ready   bool
	leaving bool
	version int
}

type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{version: 100, pods: map[string]pod{}, changed: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *apiServer) config() *rest.Config { return &rest.Config{Host: s.URL} }

func (p *pod) object() map[string]any {
	meta := map[string]any{"name": p.name, "namespace": "shop", "resourceVersion": strconv.Itoa(p.version)}
	if p.leaving {
		meta["deletionTimestamp"] = "2026-01-02T03:04:05Z"
	}
	return map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": meta, "status": map[string]any{
		"phase": p.phase, "conditions": []any{map[string]any{"type": "Ready", "status": map[bool]string{true: "True", false: "False"}[p.ready]}}}}
}

// set makes or changes a pod that runs.
func (s *apiServer) set(name string, ready bool) {
	s.put(pod{name: name, phase: "Running", ready: ready})
}

func (s *apiServer) put(p pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	p.version = s.version
	kind := "MODIFIED"
	if _, ok := s.pods[p.name]; !ok {
		kind = "ADDED"
	}
	s.pods[p.name] = p
	s.happened(event{kind, p.object()})
}

// remove ends a pod, or its labels no longer fit: both look the same.
func (s *apiServer) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	p := s.pods[name]
	p.version = s.version
	delete(s.pods, name)
	s.happened(event{"DELETED", p.object()})
}

func (s *apiServer) happened(e event) {
	s.history = append(s.history, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// tell changes how the server behaves.
func (s *apiServer) tell(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func status(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path+"?"+r.URL.RawQuery)
	refuse := s.refuse
	s.mu.Unlock()
	if refuse != nil && refuse(w, r) {
		return
	}
	if r.URL.Path != "/api/v1/namespaces/shop/pods" {
		status(w, 404, "NotFound", r.URL.Path)
		return
	}
	if r.URL.Query().Get("watch") == "true" {
		s.watch(w, r)
		return
	}
	s.list(w, r)
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	items, next := []any{}, ""
	for i := range 1000 {
		p, ok := s.pods[fmt.Sprintf("p%d", i)]
		if !ok || i < from {
			continue
		}
		if s.page > 0 && len(items) == s.page {
			next = strconv.Itoa(i)
			break
		}
		items = append(items, p.object())
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "apiVersion": "v1",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version), "continue": next}, "items": items})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	end := time.After(time.Duration(seconds) * time.Second)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	out := json.NewEncoder(w)
	for at := from - 100; ; {
		s.mu.Lock()
		fresh, changed, mute := s.history[at:], s.changed, s.mute
		s.mu.Unlock()
		if mute {
			<-r.Context().Done()
			return
		}
		for _, e := range fresh {
			out.Encode(e)
			at++
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}
