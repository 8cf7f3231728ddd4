package gateway_test

import (
	"context"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/memory"
)

// late says once that nobody has the key: it was read a moment before somebody claimed it.
type late struct {
	affinity.Store
	once atomic.Bool
}

func (l *late) Get(ctx context.Context, space, key string) (affinity.Row, error) {
	if l.once.CompareAndSwap(false, true) {
		return affinity.Row{}, nil
	}
	return l.Store.Get(ctx, space, key)
}

// A peer that wanted to build and learns from the directory that another one is building sends its request there, to wait.
// That one has no session yet, and must not lose its row for it: two would log in.
func TestPeerWaitsForWhoBuilds(t *testing.T) { // cases/affinity 4
	d := memory.NewDirectory(nil)
	began, build := make(chan struct{}), make(chan struct{})
	var builds atomic.Int32
	peer := func(id string, d affinity.Store) (*affinity.Owner[string], *httptest.Server) {
		srv := httptest.NewUnstartedServer(nil)
		o, err := affinity.Open(d, affinity.Options[string]{
			Space: "site", Instance: id, Addr: srv.Listener.Addr().String(), Every: 50 * time.Millisecond,
			Build: func(context.Context, string, uint64) (string, error) {
				if builds.Add(1) == 1 {
					close(began)
					<-build
				}
				return id, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := gateway.Peer(o, site(id), opts(d), gateway.OwnedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		srv.Config.Handler = p
		srv.Start()
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); p.Close(); o.Close() })
		return o, srv
	}
	b, _ := peer("b", d)
	go b.Use(t.Context(), "k", func(context.Context, affinity.Session[string]) error { return nil }) //nolint:errcheck // what it does is seen
	<-began
	building, err := d.Get(t.Context(), "site", "k")
	if err != nil || building.State != affinity.Building {
		t.Fatal(building, err)
	}
	_, at := peer("a", &late{Store: d}) // it has the fewest sessions, so it is a's to build
	announced(t, d, 2)
	eventually(t, "b has told how many it has", func() bool {
		list, _ := d.Instances(t.Context(), "site")
		return len(list) == 2 && list[1].Sessions == 1
	})
	answered := make(chan answer, 1)
	go func() {
		a, code, err := ask(at.URL + "/?account=k")
		if err != nil || code != 200 {
			t.Errorf("%d %v", code, err)
		}
		answered <- a
	}()
	eventually(t, "a's request waits at b", func() bool { return b.Locks().Stats().Waiting == 1 || len(answered) == 1 })
	close(build)
	if a := <-answered; a.Instance != "b" || a.Generation != building.Generation || builds.Load() != 1 {
		t.Errorf("%+v, %d builds", a, builds.Load())
	}
}
