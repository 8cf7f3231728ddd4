package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// slow is a box office whose readings wait until they may go on.
type slow struct {
	*box
	readings atomic.Int64
	proceed  func() // called before each reading
}

func (s *slow) seats(ctx context.Context, show string) (*Map, error) {
	s.readings.Add(1)
	m, err := s.box.seats(ctx, show)
	s.proceed()
	return m, err
}

func open(t *testing.T) (*slow, *site, *httptest.Server) {
	b, err := openBox(filepath.Join(t.TempDir(), "seats.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.add(t.Context(), "tonight", 10, 12); err != nil {
		t.Fatal(err)
	}
	o := &slow{box: b, proceed: func() {}}
	s := newSite(o, time.Minute)
	srv := httptest.NewServer(s)
	t.Cleanup(func() {
		srv.Close()
		s.maps.Close(context.Background())
		b.db.Close()
	})
	return o, s, srv
}

func get(t *testing.T, client *http.Client, url string) (int, Map) {
	res, err := client.Get(url)
	if err != nil {
		t.Error(err)
		return 0, Map{}
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	var m Map
	if res.StatusCode == 200 {
		if err := json.Unmarshal(b, &m); err != nil {
			t.Error(err)
		}
	}
	return res.StatusCode, m
}

func TestThousandReadersOneQuery(t *testing.T) {
	const readers = 1000
	o, s, srv := open(t)
	o.proceed = func() {
		for deadline := time.Now().Add(60 * time.Second); s.maps.Stats().Waiters < readers; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("only %d readers came", s.maps.Stats().Waiters)
				return
			}
		}
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: readers}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	var ok atomic.Int64
	for range readers {
		wg.Go(func() {
			if code, m := get(t, client, srv.URL+"/shows/tonight/seats"); code == 200 && m.Free == 120 && len(m.Seats) == 120 {
				ok.Add(1)
			}
		})
	}
	wg.Wait()
	if ok.Load() != readers || o.readings.Load() != 1 {
		t.Errorf("%d of %d readers got the map, for %d queries", ok.Load(), readers, o.readings.Load())
	}
}

func TestBuyerSeesHerSeatSold(t *testing.T) {
	o, s, srv := open(t)
	read, goOn := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	o.proceed = func() {
		if first.CompareAndSwap(false, true) {
			close(read)
			<-goOn
		}
	}
	before := make(chan Map)
	go func() { _, m := get(t, srv.Client(), srv.URL+"/shows/tonight/seats"); before <- m }()
	<-read // it has been read, and has not been given out
	res, err := srv.Client().Post(srv.URL+"/shows/tonight/seats/1/1", "", nil)
	if err != nil || res.StatusCode != http.StatusNoContent {
		t.Fatal(res, err)
	}
	after := make(chan Map)
	go func() { _, m := get(t, srv.Client(), srv.URL+"/shows/tonight/seats"); after <- m }()
	for s.maps.Stats().Queued == 0 { // she does not join the old reading
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	if m := <-before; m.Seats[0].Sold {
		t.Error("who asked before the sale got a reading of after it?")
	}
	if m := <-after; !m.Seats[0].Sold || m.Free != 119 {
		t.Errorf("the buyer sees %+v, %d free", m.Seats[0], m.Free)
	}
}

func TestSeatIsSoldOnce(t *testing.T) {
	_, _, srv := open(t)
	var wg sync.WaitGroup
	var codes [600]atomic.Int64
	for range 50 {
		wg.Go(func() {
			res, err := srv.Client().Post(srv.URL+"/shows/tonight/seats/3/4", "", nil)
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
			codes[res.StatusCode].Add(1)
		})
	}
	wg.Wait()
	if codes[204].Load() != 1 || codes[409].Load() != 49 {
		t.Errorf("%d bought it, %d were told that it is sold", codes[204].Load(), codes[409].Load())
	}
}

func TestUnknownShowsCostLittle(t *testing.T) {
	o, _, srv := open(t)
	for range 50 {
		if code, _ := get(t, srv.Client(), srv.URL+"/shows/nowhere/seats"); code != 404 {
			t.Errorf("got %d", code)
		}
	}
	if n := o.readings.Load(); n > 5 { // one, unless the machine is so slow that the back-off ran out
		t.Errorf("%d queries for a show that is not there", n)
	}
	for path, want := range map[string]int{"/shows/tonight/seats/99/1": 404, "/shows/tonight/seats/x/1": 404} {
		res, err := srv.Client().Post(srv.URL+path, "", nil)
		if err != nil || res.StatusCode != want {
			t.Errorf("%s: %v, %v", path, res, err)
		}
	}
	res, err := srv.Client().Get(srv.URL + "/stats")
	if err != nil || res.StatusCode != 200 {
		t.Error(fmt.Sprint(res, err))
	}
}
