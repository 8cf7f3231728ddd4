package web

import (
	"fmt"
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

// analysis is what one room's figures say about its capacity.
type analysis struct {
	Room                         string   `json:"room"`
	Active                       int64    `json:"active"`
	Limit                        *int64   `json:"limit"`
	Utilisation                  *float64 `json:"utilisation"` // active / limit, mean of the last five minutes; null without a limit
	Waiting                      int64    `json:"waiting"`
	Trend                        string   `json:"trend"`              // of waiting: rising, falling or steady
	WaitingPerMinute             float64  `json:"waiting_per_minute"` // its slope over the last five minutes
	MeasuredStayS                *float64 `json:"measured_stay_s"`    // null: nobody has left yet
	Sessions                     int64    `json:"sessions"`           // the limit, or without one those active
	PredictedThroughputPerMinute *float64 `json:"predicted_throughput_per_minute"`
	ExpectedWaitS                *int64   `json:"expected_wait_s"` // of who enters now; null: no basis
	TargetWaitS                  int64    `json:"target_wait_s"`
	Recommendation               string   `json:"recommendation"` // up, hold or down
	Reason                       string   `json:"reason"`
}

func (c *call) analysis() {
	list := []analysis{}
	for _, rm := range c.s.opts.Rooms.List() {
		list = append(list, c.s.analyse(rm))
	}
	c.json(http.StatusOK, "no-store", map[string]any{"at": room.FormatAt(time.Now().UnixMicro()), "rooms": list})
}

func (s *Server) analyse(rm *room.Room) analysis {
	sum := rm.Summary()
	a := analysis{
		Room: rm.ID(), Active: sum.Active, Limit: limitOf(&sum), Waiting: sum.Waiting, Sessions: sum.Active,
		TargetWaitS: int64(time.Duration(sum.Config.TargetWait) / time.Second),
	}
	if a.Limit != nil {
		a.Sessions = *a.Limit
	}
	if stay, ok := s.opts.Observer.stay(rm.ID()); ok && stay > 0 {
		rounded := round(stay)
		a.MeasuredStayS = &rounded
		p := float64(a.Sessions) * 60 / stay
		if r := float64(sum.Config.Capacity.RatePerMinute); r > 0 {
			p = min(p, r)
		}
		p = round(p)
		a.PredictedThroughputPerMinute = &p
	}
	now := rm.Now()
	switch eta := etaAt(&now, sum.Waiting); {
	case sum.Waiting == 0:
		zero := int64(0)
		a.ExpectedWaitS = &zero
	case eta != nil:
		mid := (eta.LowS + eta.HighS) / 2
		a.ExpectedWaitS = &mid
	case a.PredictedThroughputPerMinute != nil && *a.PredictedThroughputPerMinute > 0:
		w := int64(float64(sum.Waiting) * 60 / *a.PredictedThroughputPerMinute)
		a.ExpectedWaitS = &w
	}
	list := s.history.of(rm.ID())
	judge(&a, &sum, list[max(0, len(list)-30):])
	return a
}

func round(f float64) float64 { return math.Round(f*100) / 100 }

// judge fills trend and recommendation from the samples of the last five minutes.
func judge(a *analysis, sum *room.Summary, list []sample) {
	a.Trend = "steady"
	var used float64
	if n := len(list); n > 1 {
		minutes := list[n-1].when.Sub(list[0].when).Minutes()
		a.WaitingPerMinute = round(float64(list[n-1].Waiting-list[0].Waiting) / max(minutes, 1.0/6))
	}
	if a.Limit != nil && *a.Limit > 0 {
		used = float64(a.Active) / float64(*a.Limit)
		for i := range list {
			used += float64(list[i].Active) / float64(*a.Limit)
		}
		used = round(used / float64(len(list)+1))
		a.Utilisation = &used
	}
	switch step := max(1, 0.02*float64(a.Waiting)); {
	case a.WaitingPerMinute >= step:
		a.Trend = "rising"
	case a.WaitingPerMinute <= -step:
		a.Trend = "falling"
	}
	state := room.EffectiveState(sum.State, sum.Phase)
	what := "the limit"
	if sum.Config.Capacity.RatePerMinute > 0 && a.Utilisation != nil && used < 0.9 {
		what = "rate_per_minute"
	}
	a.Recommendation = "hold"
	switch {
	case state != room.StateOpen:
		a.Reason = "the room is " + state + "; its figures say nothing about capacity"
	case a.Waiting > 0 && a.ExpectedWaitS != nil && *a.ExpectedWaitS > a.TargetWaitS:
		a.Recommendation = "up"
		a.Reason = fmt.Sprintf("who enters now waits about %d s, target_wait is %d s: raise %s, if the origin bears it", *a.ExpectedWaitS, a.TargetWaitS, what)
	case a.Waiting > 0 && a.Utilisation != nil && used >= 0.95 && a.Trend == "rising":
		a.Recommendation = "up"
		a.Reason = fmt.Sprintf("%.0f %% of the sessions are in use and the line grows by %.1f a minute: raise %s, if the origin bears it", used*100, a.WaitingPerMinute, what)
	case a.Waiting > 0:
		a.Reason = "people wait, within the target"
	case a.Utilisation != nil && used < 0.3 && len(list) >= 30:
		a.Recommendation = "down"
		a.Reason = fmt.Sprintf("nobody waits, and %.0f %% of the sessions were in use in the last five minutes", used*100)
	case len(list) < 30:
		a.Reason = "nobody waits; less than five minutes have been measured"
	default:
		a.Reason = "nobody waits"
	}
}
