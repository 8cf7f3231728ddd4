package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/ushergo/usher/flight"
)

// office is what web needs of a box.
type office interface {
	seats(ctx context.Context, show string) (*Map, error)
	sell(ctx context.Context, show string, row, no int) error
}

// site shows seat maps and sells seats.
type site struct {
	office office
	// maps lets everybody who asks for a show's map while it is being read have that one reading. Nothing is cached:
	// who comes after it is done gets a new one.
	maps *flight.Group[string, []byte]
	mux  http.ServeMux
}

func newSite(o office, patience time.Duration) *site {
	s := &site{office: o, maps: flight.New(flight.Options[string, []byte]{
		Timeout: patience, // with one reading
		// The database bears four readings at a time, whatever the number of shows that are asked for.
		Budget: flight.Budget{Concurrency: 4, MaxPending: 200},
		// A reading that nobody waits for any more is stopped.
		OnLastLeave: flight.CancelLoad,
		Classify: func(err error) flight.Class {
			if errors.Is(err, errNoShow) {
				return flight.NotFound // asking for shows that are not there costs the database little
			}
			return flight.Transient
		},
	})}
	s.mux.HandleFunc("GET /{$}", page)
	s.mux.HandleFunc("GET /shows/{show}/seats", s.show)
	s.mux.HandleFunc("POST /shows/{show}/seats/{row}/{no}", s.buy)
	s.mux.HandleFunc("GET /stats", s.stats)
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *site) show(w http.ResponseWriter, r *http.Request) {
	show := r.PathValue("show")
	body, err := s.maps.Do(r.Context(), show, func(ctx context.Context) ([]byte, error) {
		m, err := s.office.seats(ctx, show)
		if err != nil {
			return nil, err
		}
		return json.Marshal(m) // once for all; nobody changes it
	})
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(body)
}

func (s *site) buy(w http.ResponseWriter, r *http.Request) {
	row, err1 := strconv.Atoi(r.PathValue("row"))
	no, err2 := strconv.Atoi(r.PathValue("no"))
	if err1 != nil || err2 != nil {
		fail(w, errNoSeat)
		return
	}
	show := r.PathValue("show")
	err := s.office.sell(r.Context(), show, row, no)
	// Whoever looks from now on, the buyer first, must not be given a reading that began before the sale. So also when
	// it is unknown whether there was one.
	if !errors.Is(err, errSold) && !errors.Is(err, errNoSeat) {
		s.maps.Forget(show)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *site) stats(w http.ResponseWriter, _ *http.Request) {
	st := s.maps.Stats()
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{
		"calls": st.Calls, "shared": st.Shared, "queries": st.Loads, "waiters": st.Waiters, "reading": st.Budget,
	})
}

func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var back *flight.BackoffError
	switch {
	case errors.Is(err, errNoShow), errors.Is(err, errNoSeat):
		status = http.StatusNotFound
	case errors.Is(err, errSold):
		status = http.StatusConflict
	case errors.As(err, &back):
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(back.Wait.Seconds()))))
		status = http.StatusServiceUnavailable
	case errors.Is(err, flight.ErrBusy), errors.Is(err, flight.ErrClosed):
		w.Header().Set("Retry-After", "1")
		status = http.StatusServiceUnavailable
	case errors.Is(err, flight.ErrTimeout):
		status = http.StatusGatewayTimeout
	}
	http.Error(w, http.StatusText(status), status)
}

func page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write([]byte(pageHTML))
}

const pageHTML = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Seats</title>
<style>
body { font: 16px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 40rem; padding: 0 1rem; color-scheme: light dark }
#seats { display: grid; gap: .3rem; grid-template-columns: repeat(12, 1fr) }
button { aspect-ratio: 1; padding: 0; border: 1px solid; border-radius: .3rem; background: #cfe8cf; color: #123 }
button:disabled { background: #ccc; color: #777 }
</style>
<h1>Tonight, 20:15</h1>
<p id="free" role="status"></p>
<div id="seats"></div>
<script>
const box = document.querySelector('#seats')
async function show() {
  const res = await fetch('/shows/tonight/seats')
  if (!res.ok) { document.querySelector('#free').textContent = 'The map is not to be had just now.'; return }
  const map = await res.json()
  document.querySelector('#free').textContent = map.free + ' seats are free'
  box.replaceChildren(...map.seats.map(s => {
    const b = document.createElement('button')
    b.textContent = String.fromCharCode(64 + s.row) + s.no
    b.disabled = s.sold
    b.ariaLabel = b.textContent + (s.sold ? ', sold' : ', free')
    b.onclick = async () => { await fetch('/shows/tonight/seats/' + s.row + '/' + s.no, {method: 'POST'}); show() }
    return b
  }))
}
show(); setInterval(show, 2000)
</script>
</html>`
