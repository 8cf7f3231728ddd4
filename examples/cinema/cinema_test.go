package cinema_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/examples/cinema"
)

// open gives a site with a patient database wait, so that a slow machine does
// not turn a test about seats into one about time.
func open(t *testing.T, opt cinema.Options) *cinema.Site {
	t.Helper()
	if opt.Wait == 0 {
		opt.Wait = time.Minute
	}
	s, err := cinema.Open(t.Context(), filepath.Join(t.TempDir(), "cinema ?#%.db"), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// browser is one visitor: it keeps its cookie and follows nothing by itself.
type browser struct {
	site   http.Handler
	cookie string
	header http.Header
}

func (b *browser) do(method, path string, form url.Values) *http.Response {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, "http://tickets.test"+path, body)
	for k, v := range b.header {
		r.Header[k] = v
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if b.cookie != "" {
		r.Header.Set("Cookie", b.cookie)
	}
	w := httptest.NewRecorder()
	b.site.ServeHTTP(w, r)
	res := w.Result()
	for _, c := range res.Cookies() {
		b.cookie = c.Name + "=" + c.Value
	}
	return res
}

func (b *browser) get(path string) *http.Response { return b.do("GET", path, nil) }

func (b *browser) hold(path, seat string) *http.Response {
	return b.do("POST", path+"/hold", url.Values{"seat": {seat}})
}

func (b *browser) pay(path, seat string) *http.Response {
	return b.do("POST", path+"/pay", url.Values{"seat": {seat}})
}

func text(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func want(t *testing.T, res *http.Response, code int) {
	t.Helper()
	if res.StatusCode != code {
		t.Fatalf("status %d, want %d: %.300s", res.StatusCode, code, text(t, res))
	}
}

func firstShowing(t *testing.T, s http.Handler, film string) string {
	t.Helper()
	page := text(t, (&browser{site: s}).get(film))
	m := regexp.MustCompile(`href="(` + film + `/showings/\d+)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no showing on %s", film)
	}
	return m[1]
}

func TestPurchase(t *testing.T) {
	s := open(t, cinema.Options{Work: time.Millisecond})
	path := firstShowing(t, s, "/premiere")
	b := &browser{site: s, header: http.Header{"X-Usher-Ticket-Id": {"tk-123"}}}

	res := b.hold(path, "C7")
	want(t, res, http.StatusSeeOther)
	if got := res.Header.Get("Location"); got != path+"/pay" {
		t.Fatalf("held, sent to %q", got)
	}
	want(t, b.get(path+"/pay"), http.StatusOK)

	res = b.pay(path, "C7")
	want(t, res, http.StatusSeeOther)
	thanks := res.Header.Get("Location")
	if again := b.pay(path, "C7").Header.Get("Location"); again != thanks {
		t.Fatalf("paying again gave %q, first %q", again, thanks)
	}
	res = b.get(thanks)
	want(t, res, http.StatusOK)
	if got := res.Header.Get("Usher-Session"); got != "end" {
		t.Fatalf("Usher-Session on the confirmation: %q", got)
	}
	if page := text(t, res); !strings.Contains(page, "C7") || !strings.Contains(page, "tk-123") {
		t.Fatal("the confirmation lacks the seat or the ticket id")
	}
	if page := text(t, b.get("/bookings")); !strings.Contains(page, "C7") {
		t.Fatal("the booking is not under My bookings")
	}

	stranger := &browser{site: s}
	want(t, stranger.get(thanks), http.StatusNotFound)
	if res := stranger.hold(path, "C7"); res.StatusCode != http.StatusConflict {
		t.Fatalf("a sold seat was held: %d", res.StatusCode)
	}
	st, err := s.Stats(context.Background())
	if err != nil || st.Bookings != 1 {
		t.Fatalf("stats %+v, %v", st, err)
	}
}

func TestOnlyTheConfirmationEndsTheSession(t *testing.T) {
	s := open(t, cinema.Options{})
	path := firstShowing(t, s, "/premiere")
	b := &browser{site: s}
	for _, res := range []*http.Response{b.get("/"), b.get("/premiere"), b.get(path), b.hold(path, "A1"), b.get(path + "/pay"),
		b.pay(path, "A1"), b.get("/bookings"), b.get("/premiere/thanks/AAAAAAAAAA")} {
		if v := res.Header.Get("Usher-Session"); v != "" {
			t.Fatalf("Usher-Session %q before the confirmation", v)
		}
	}
}

func TestOneSeatOneWinner(t *testing.T) {
	s := open(t, cinema.Options{})
	path := firstShowing(t, s, "/premiere")
	var won, lost, other atomic.Int64
	var winner atomic.Pointer[browser]
	start := make(chan struct{})
	var wg sync.WaitGroup
	for range 500 {
		wg.Go(func() {
			b := &browser{site: s}
			<-start
			switch res := b.hold(path, "E6"); res.StatusCode {
			case http.StatusSeeOther:
				won.Add(1)
				winner.Store(b)
			case http.StatusConflict:
				lost.Add(1)
			default:
				other.Add(1)
			}
			if res := b.pay(path, "E6"); res.StatusCode == http.StatusSeeOther && winner.Load() != b {
				t.Error("someone paid for a seat that another holds")
			}
		})
	}
	close(start)
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 499 || other.Load() != 0 {
		t.Fatalf("won %d, lost %d, other %d; want 1, 499, 0", won.Load(), lost.Load(), other.Load())
	}
	st, _ := s.Stats(t.Context())
	if st.Bookings != 1 {
		t.Fatalf("%d bookings of one seat", st.Bookings)
	}
}

func TestSoldOut(t *testing.T) {
	s := open(t, cinema.Options{})
	path := firstShowing(t, s, "/premiere")
	for row := 'A'; row <= 'J'; row++ {
		for n := 1; n <= 12; n++ {
			b := &browser{site: s}
			seat := fmt.Sprintf("%c%d", row, n)
			want(t, b.hold(path, seat), http.StatusSeeOther)
			want(t, b.pay(path, seat), http.StatusSeeOther)
		}
	}
	late := &browser{site: s}
	res := late.hold(path, "A1")
	want(t, res, http.StatusConflict)
	if page := text(t, res); !strings.Contains(page, "last seat of this showing has just gone") {
		t.Fatal("a sold-out showing does not say so")
	}
	if page := text(t, late.get("/premiere")); strings.Contains(page, `href="`+path+`"`) || !strings.Contains(page, "Sold out") {
		t.Fatal("a sold-out showing is still offered")
	}
	before, _ := s.Stats(t.Context())
	if _, err := s.AddShowing(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, _ := s.Stats(t.Context())
	if after.SeatsLeft != before.SeatsLeft+120 {
		t.Fatalf("seats left %d, then %d", before.SeatsLeft, after.SeatsLeft)
	}
}

func TestHoldEndsByItself(t *testing.T) {
	var mu sync.Mutex
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	s := open(t, cinema.Options{Hold: time.Minute, Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	path := firstShowing(t, s, "/premiere")
	first, second := &browser{site: s}, &browser{site: s}
	want(t, first.hold(path, "B2"), http.StatusSeeOther)
	want(t, second.hold(path, "B2"), http.StatusConflict)
	mu.Lock()
	now = now.Add(61 * time.Second)
	mu.Unlock()
	want(t, second.hold(path, "B2"), http.StatusSeeOther)
	res := first.pay(path, "B2")
	want(t, res, http.StatusConflict)
	if !strings.Contains(text(t, res), "ran out") {
		t.Fatal("the late payer is not told why")
	}
	want(t, second.pay(path, "B2"), http.StatusSeeOther)
	mu.Lock()
	now = now.AddDate(0, 0, 3)
	mu.Unlock()
	want(t, second.hold(path, "B3"), http.StatusConflict) // the film has begun
}

func TestChoosingAgainGivesTheFirstSeatBack(t *testing.T) {
	s := open(t, cinema.Options{})
	path := firstShowing(t, s, "/films/paper-lantern")
	b, other := &browser{site: s}, &browser{site: s}
	want(t, b.hold(path, "A1"), http.StatusSeeOther)
	want(t, b.hold(path, "A2"), http.StatusSeeOther)
	want(t, other.hold(path, "A1"), http.StatusSeeOther)
	want(t, b.do("POST", path+"/release", url.Values{}), http.StatusSeeOther)
	want(t, other.hold(path, "A2"), http.StatusSeeOther)
	if res := b.get(path + "/pay"); res.StatusCode != http.StatusSeeOther {
		t.Fatalf("a page to pay for nothing: %d", res.StatusCode)
	}
}

func TestScarce(t *testing.T) {
	s := open(t, cinema.Options{Conns: 1, Wait: 200 * time.Millisecond, Work: time.Hour})
	path := firstShowing(t, s, "/premiere")
	b := &browser{site: s}
	want(t, b.hold(path, "A1"), http.StatusSeeOther)
	res := b.pay(path, "A1")
	want(t, res, http.StatusServiceUnavailable)
	if res.Header.Get("Retry-After") == "" {
		t.Fatal("busy, and no Retry-After")
	}
	want(t, b.get(path+"/pay"), http.StatusOK) // the hold outlives the failure
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	_, err := cinema.Open(t.Context(), filepath.Join(t.TempDir(), "absent", "c.db"), cinema.Options{})
	if err == nil || !strings.Contains(err.Error(), "folder") {
		t.Fatalf("error %v does not name the folder", err)
	}
}

func TestDatabaseOpenedAgainKeepsBookings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.db")
	s, err := cinema.Open(t.Context(), file, cinema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{site: s}
	path := firstShowing(t, s, "/premiere")
	want(t, b.hold(path, "D4"), http.StatusSeeOther)
	want(t, b.pay(path, "D4"), http.StatusSeeOther)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = cinema.Open(t.Context(), file, cinema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b.site = s
	if !strings.Contains(text(t, b.get("/bookings")), "D4") {
		t.Fatal("the booking is gone")
	}
}
