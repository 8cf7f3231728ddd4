package keeper_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/keeper/keepertest"
	"github.com/ushergo/usher/lease"
)

const generous = time.Minute

func dialer() *egress.Dialer {
	return &egress.Dialer{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

func logger(t *testing.T) *slog.Logger {
	if os.Getenv("USHER_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("test", t.Name())
}

func upstream(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		if u, ok := h.(*keepertest.Upstream); ok {
			u.Close()
		}
		s.CloseClientConnections()
		s.Close()
	})
	return "ws" + strings.TrimPrefix(s.URL, "http")
}

// world is a store, an upstream and a sink, for any number of workers.
type world struct {
	t     *testing.T
	store lease.Store
	up    *keepertest.Upstream
	url   string
	sink  *keepertest.Memory
}

func newWorld(t *testing.T, up *keepertest.Upstream) *world {
	t.Helper()
	store, err := memory.OpenLeases("", "test", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return &world{t: t, store: store, up: up, url: upstream(t, up), sink: &keepertest.Memory{}}
}

func spec(url string) keeper.Spec {
	return keeper.Spec{
		URL: url, Desired: lease.Started, Cursor: keeper.CursorRule{JSON: "seq"},
		Resume: keeper.Resume{Query: "from={cursor}&fence={fence}"},
	}
}

func (w *world) put(id string, s keeper.Spec) {
	w.t.Helper()
	p, err := s.Put(id)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.store.Put(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
}

// worker is a running keeper.
type worker struct {
	*keeper.Keeper
	kill func() // ends without a word: as a process killed
	stop func() // gracefully; returns when it has ended
	done chan error
}

// cutStore is a store that can be cut off.
type cutStore struct {
	lease.Store
	off chan struct{}
}

func (s *cutStore) Leave(ctx context.Context, o lease.Owner) error {
	if s.isOff() {
		return lease.ErrUnavailable
	}
	return s.Store.Leave(ctx, o)
}

func (s *cutStore) Release(ctx context.Context, r lease.Release) (bool, error) {
	if s.isOff() {
		return false, lease.ErrUnavailable
	}
	return s.Store.Release(ctx, r)
}

func (s *cutStore) Beat(ctx context.Context, b lease.Beat) (bool, error) {
	if s.isOff() {
		return false, lease.ErrUnavailable
	}
	return s.Store.Beat(ctx, b)
}

func (s *cutStore) Flush(ctx context.Context, cs []lease.Cursor) ([]bool, error) {
	if s.isOff() {
		return nil, lease.ErrUnavailable
	}
	return s.Store.Flush(ctx, cs)
}

func (s *cutStore) Workers(ctx context.Context) ([]lease.WorkerRow, error) {
	if s.isOff() {
		return nil, lease.ErrUnavailable
	}
	return s.Store.Workers(ctx)
}

func (s *cutStore) isOff() bool {
	select {
	case <-s.off:
		return true
	default:
		return false
	}
}

func (w *world) start(name string, o keeper.Options, lo lease.Options) *worker {
	w.t.Helper()
	if o.Sink == nil {
		o.Sink = w.sink
	}
	if o.Dial == nil {
		o.Dial = dialer().DialContext
	}
	o.Logger, lo.Logger = logger(w.t).With("worker", name), logger(w.t).With("worker", name)
	if o.Reconnect == 0 {
		o.Reconnect, o.MaxReconnect = 20*time.Millisecond, 200*time.Millisecond
	}
	lo.Worker = name
	if lo.Lease == 0 {
		lo.Lease = 3 * time.Second
	}
	k, err := keeper.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	store := &cutStore{w.store, make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	x := &worker{Keeper: k, done: make(chan error, 1)}
	go func() { x.done <- k.Run(ctx, store, lo) }()
	cut := false
	x.kill = func() {
		if !cut {
			cut = true
			close(store.off)
		}
		cancel()
	}
	x.stop = func() {
		cancel()
		select {
		case err := <-x.done:
			x.done <- err
		case <-time.After(generous):
			w.t.Error("the worker did not stop")
		}
	}
	w.t.Cleanup(x.stop)
	return x
}

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(generous); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("in vain: " + what)
		}
	}
}

// settle ends the upstream and waits until everything is stored.
func (w *world) settle(ids ...string) {
	w.t.Helper()
	last := w.up.End()
	for _, id := range ids {
		until(w.t, "everything is stored", func() bool { return int64(w.sink.Len(id)) >= last })
		if err := w.sink.Audit(id, last, func(n int64) []byte { return w.up.Text(id, n) }); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) row(id string) lease.Row {
	w.t.Helper()
	rows, err := w.store.Get(context.Background(), []string{id})
	if err != nil || len(rows) != 1 {
		w.t.Fatal(rows, err)
	}
	return rows[0]
}

var errSink = errors.New("the sink is broken")

// frozen is a listener whose connections are accepted by nobody: dials succeed and handshakes hang.
func frozen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return "ws://" + l.Addr().String()
}
