package webhook_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/webhook"
)

const secret = "a secret of the receiver"

// local reaches loopback, as egress.allow would let it.
func local() webhook.Options {
	d := &egress.Dialer{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	return webhook.Options{Secret: secret, Dial: d.DialContext}
}

func open(t *testing.T, url string, opts webhook.Options) *webhook.Sink {
	t.Helper()
	s, err := webhook.New(url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func event(id string) relay.Event {
	return relay.Event{ID: id, Key: "key-" + id, Type: "admitted", Payload: []byte(`{"id":"` + id + `"}`)}
}

func TestRequestsAreSigned(t *testing.T) {
	checked := make(chan error, 3)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		err := webhook.Verify(r.Header, body, time.Now(), time.Minute, "an older secret of it", secret)
		switch {
		case err != nil:
		case string(body) != `{"id":"a/1.1"}` || r.Header.Get("Usher-Event-Id") != "a/1.1" || r.Header.Get("Usher-Fence") != "7":
			err = errors.New("not the event")
		case webhook.Verify(r.Header, append(body, ' '), time.Now(), time.Minute, secret) == nil:
			err = errors.New("another body passes")
		case webhook.Verify(r.Header, body, time.Now().Add(time.Hour), time.Minute, secret) == nil:
			err = errors.New("an old request passes")
		case webhook.Verify(r.Header, body, time.Now(), time.Minute, "wrong") == nil:
			err = errors.New("another secret passes")
		}
		checked <- err
	}))
	defer srv.Close()
	s := open(t, srv.URL, local())
	if errs := s.Send(t.Context(), relay.Batch{Fence: 7, Events: []relay.Event{event("a/1.1")}}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if err := <-checked; err != nil {
		t.Fatal(err)
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch code := strings.TrimPrefix(r.Header.Get("Usher-Event-Id"), "e"); code {
		case "200":
		case "429", "503":
			w.Header().Set("Retry-After", "7")
			fallthrough
		default:
			var n int
			for _, c := range code {
				n = n*10 + int(c-'0')
			}
			w.WriteHeader(n)
		case "cut":
			panic(http.ErrAbortHandler)
		}
	}))
	srv.Config.ErrorLog = nil
	defer srv.Close()
	s := open(t, srv.URL, local())
	want := map[string]relay.Class{
		"400": relay.Rejected, "422": relay.Rejected, "413": relay.Rejected, "409": relay.Rejected,
		"401": relay.Denied, "403": relay.Denied, "404": relay.Denied, "410": relay.Denied, "301": relay.Denied,
		"429": relay.Throttled, "503": relay.Throttled,
		"500": relay.Transient, "502": relay.Transient, "408": relay.Transient, "cut": relay.Transient,
	}
	b := relay.Batch{Events: []relay.Event{event("e200")}}
	for code := range want {
		b.Events = append(b.Events, event("e"+code))
	}
	errs := s.Send(t.Context(), b)
	for i, e := range b.Events {
		code := strings.TrimPrefix(e.ID, "e")
		if code == "200" {
			if errs[i] != nil {
				t.Errorf("200: %v", errs[i])
			}
			continue
		}
		if errs[i] == nil || relay.ClassOf(errs[i]) != want[code] {
			t.Errorf("%s: %v (%v), want %v", code, errs[i], relay.ClassOf(errs[i]), want[code])
		}
		var classed *relay.Error
		if code == "429" && (!errors.As(errs[i], &classed) || classed.After != 7*time.Second) {
			t.Errorf("429: Retry-After is not heard: %+v", classed)
		}
	}
}

func TestPrivateAddressesNeedLeave(t *testing.T) {
	var asked atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer inside.Close()
	s := open(t, inside.URL, webhook.Options{})
	err := s.Send(t.Context(), relay.Batch{Events: []relay.Event{event("x")}})[0]
	if relay.ClassOf(err) != relay.Denied || !egress.Refused(err) {
		t.Fatalf("a loopback address: %v", err)
	}
	// A redirect from a place that may be reached to one that may not.
	out := httptest.NewServer(http.RedirectHandler(inside.URL, http.StatusTemporaryRedirect))
	defer out.Close()
	check := &egress.Dialer{}
	opts := webhook.Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == strings.TrimPrefix(out.URL, "http://") { // stands for a public address
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		return check.DialContext(ctx, network, addr)
	}}
	err = open(t, out.URL, opts).Send(t.Context(), relay.Batch{Events: []relay.Event{event("x")}})[0]
	if relay.ClassOf(err) != relay.Denied || !egress.Refused(err) {
		t.Fatalf("a redirect to a loopback address: %v", err)
	}
	if asked.Load() != 0 {
		t.Fatal("the inside was reached")
	}
	// One that may be followed is, with method and body.
	got := make(chan string, 1)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + string(body)
	}))
	defer target.Close()
	hop := httptest.NewServer(http.RedirectHandler(target.URL, http.StatusPermanentRedirect))
	defer hop.Close()
	if err := open(t, hop.URL, local()).Send(t.Context(), relay.Batch{Events: []relay.Event{event("x")}})[0]; err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != `POST{"id":"x"}` {
		t.Fatal(s)
	}
}

func TestAReceiverThatHangsIsLeft(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer srv.Close()
	defer close(release)
	opts := local()
	opts.Timeout = 50 * time.Millisecond
	s := open(t, srv.URL, opts)
	if err := s.Send(t.Context(), relay.Batch{Events: []relay.Event{event("x")}})[0]; err == nil || relay.ClassOf(err) != relay.Transient {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Send(ctx, relay.Batch{Events: []relay.Event{event("x")}})[0]; err == nil {
		t.Fatal("sent though the context has ended")
	}
}
