package web

import (
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/ushergo/usher/room"
)

const (
	sampleEvery = 10 * time.Second
	maxSamples  = 100
)

// sample is a room at one moment, and what happened since the sample before.
type sample struct {
	At       string `json:"at"`
	Waiting  int64  `json:"waiting"`
	Active   int64  `json:"active"`
	Limit    *int64 `json:"limit"`
	Entered  uint64 `json:"entered"`
	Admitted uint64 `json:"admitted"`
	GaveUp   uint64 `json:"gave_up"` // waiters who left or were abandoned

	when                   time.Time
	entered, admitted, out uint64 // totals
}

// history keeps the last samples of each room.
type history struct {
	mu    sync.Mutex
	rooms map[string][]sample
}

func newHistory() *history { return &history{rooms: map[string][]sample{}} }

// keepHistory samples until Close.
func (s *Server) keepHistory() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	s.sampleAll(time.Now())
	for {
		select {
		case now := <-tick.C:
			s.sampleAll(now)
		case <-s.stop:
			return
		}
	}
}

func (s *Server) sampleAll(now time.Time) {
	h := s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := make(map[string][]sample, len(h.rooms))
	for _, rm := range s.opts.Rooms.List() {
		sum := rm.Summary()
		next := sample{
			At: now.UTC().Format(time.RFC3339), Waiting: sum.Waiting, Active: sum.Active, Limit: limitOf(&sum),
			when: now, admitted: sum.AdmittedTotal, entered: sum.LastSeq,
		}
		_, next.out = s.opts.Observer.flows(rm.ID())
		list := h.rooms[rm.ID()]
		if n := len(list); n > 0 {
			last := &list[n-1]
			next.Admitted, next.Entered, next.GaveUp = since(next.admitted, last.admitted), since(next.entered, last.entered), since(next.out, last.out)
		}
		if len(list) >= maxSamples {
			list = append(list[:0:0], list[len(list)-maxSamples+1:]...) // readers may hold the old one
		}
		kept[rm.ID()] = append(list, next)
	}
	for id := range h.rooms {
		if kept[id] == nil { // deleted
			s.opts.Observer.forget(id)
			s.metrics.limited.DeleteLabelValues(id)
		}
	}
	h.rooms = kept
}

// since is how far a total has grown; a room made anew begins again.
func since(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func (h *history) of(id string) []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rooms[id]
}

// perMinute is the measured rate of admissions: those of the last minute, or since this node began.
func (h *history) perMinute(id string, total uint64) float64 {
	list, now := h.of(id), time.Now()
	for i := range list {
		if age := now.Sub(list[i].when); age <= time.Minute || i == len(list)-1 {
			if i > 0 && age < time.Minute {
				i-- // the one just beyond the minute
				age = now.Sub(list[i].when)
			}
			return math.Round(float64(since(total, list[i].admitted))/max(age.Seconds(), 1)*600) / 10
		}
	}
	return 0
}

// roomSamples is one room of the dashboard.
type roomSamples struct {
	Room          string   `json:"room"`
	State         string   `json:"state"`
	Message       string   `json:"message"`
	Waiting       int64    `json:"waiting"`
	Active        int64    `json:"active"`
	Limit         *int64   `json:"limit"`
	AdmittedTotal uint64   `json:"admitted_total"`
	RatePerMinute float64  `json:"rate_per_minute"`
	Samples       []sample `json:"samples"`
}

// dashboard is the last 100 ten-second samples of each room.
func (c *call) dashboard() {
	list := []roomSamples{}
	for _, rm := range c.s.opts.Rooms.List() {
		sum := rm.Summary()
		samples := c.s.history.of(rm.ID())
		if samples == nil {
			samples = []sample{}
		}
		list = append(list, roomSamples{
			Room: rm.ID(), State: room.EffectiveState(sum.State, sum.Phase), Message: sum.Message, Waiting: sum.Waiting, Active: sum.Active,
			Limit: limitOf(&sum), AdmittedTotal: sum.AdmittedTotal, RatePerMinute: c.s.history.perMinute(rm.ID(), sum.AdmittedTotal), Samples: samples,
		})
	}
	c.json(http.StatusOK, "no-store", map[string]any{"at": room.FormatAt(time.Now().UnixMicro()), "interval_s": int(sampleEvery / time.Second), "rooms": list})
}
