package web

import (
	"math"
	"net/http"
	"time"

	"github.com/ushergo/usher/room"
)

// Analysis is what one room's figures say about its capacity.
type Analysis struct {
	Room                         string   `json:"room"`
	Active                       int64    `json:"active"`
	Limit                        *int64   `json:"limit"`
	Utilisation                  *float64 `json:"utilisation"` // active / limit, mean of the last minute; null without a limit
	Waiting                      int64    `json:"waiting"`
	Trend                        string   `json:"trend"`              // of active + waiting: rising, falling or steady
	DemandPerMinute              float64  `json:"demand_per_minute"`  // its slope over the last five minutes
	WaitingPerMinute             float64  `json:"waiting_per_minute"` // the line's own slope
	MeasuredStayS                *float64 `json:"measured_stay_s"`    // null: nobody has left yet
	Sessions                     int64    `json:"sessions"`           // the limit, or without one those active
	PredictedThroughputPerMinute *float64 `json:"predicted_throughput_per_minute"`
	ExpectedWaitS                *int64   `json:"expected_wait_s"` // of who enters now; null: no basis
	TargetWaitS                  int64    `json:"target_wait_s"`
	Instances                    *int64   `json:"instances"`             // that count now; null without capacity.per_instance
	RecommendedInstances         *int64   `json:"recommended_instances"` // null without capacity.per_instance
	Recommendation               string   `json:"recommendation"`        // up, hold or down
	Reason                       string   `json:"reason"`
}

func (c *call) analysis() {
	list := []Analysis{}
	for _, rm := range c.s.opts.Rooms.List() {
		list = append(list, c.s.analyse(rm))
	}
	c.json(http.StatusOK, "no-store", map[string]any{"at": room.FormatAt(time.Now().UnixMicro()), "rooms": list})
}

// Analyse says what GET /admin/v1/analysis says of one room; ok is false when this node knows no room of that name.
func (s *Server) Analyse(id string) (a Analysis, ok bool) {
	rm, ok := s.opts.Rooms.Lookup(id)
	if !ok {
		return Analysis{}, false
	}
	return s.analyse(rm), true
}

func (s *Server) analyse(rm *room.Room) Analysis {
	sum := rm.Summary()
	a := Analysis{
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
	a.measure(list[max(0, len(list)-fiveMinutes):])
	f := figures{Analysis: a, state: room.EffectiveState(sum.State, sum.Phase), capacity: sum.Config.Capacity, whole: len(list) >= fiveMinutes}
	if f.capacity.PerInstance > 0 {
		a.Instances = &sum.Instances
		f.instances = sum.Instances
	}
	said := advise(f)
	a.Recommendation, a.Reason = said.recommendation, said.reason
	if a.Instances != nil {
		a.RecommendedInstances = &said.instances
	}
	return a
}

const (
	oneMinute   = int(time.Minute / sampleEvery)
	fiveMinutes = 5 * oneMinute
)

func round(f float64) float64 { return math.Round(f*100) / 100 }

// measure fills utilisation and trend from the samples of the last five minutes.
func (a *Analysis) measure(list []sample) {
	if a.Limit != nil && *a.Limit > 0 {
		used, last := float64(a.Active), list[max(0, len(list)-oneMinute):]
		for i := range last {
			used += float64(last[i].Active)
		}
		used = round(used / float64(len(last)+1) / float64(*a.Limit))
		a.Utilisation = &used
	}
	a.WaitingPerMinute = round(slope(list, func(s *sample) int64 { return s.Waiting }))
	a.DemandPerMinute = round(slope(list, func(s *sample) int64 { return s.Waiting + s.Active }))
	a.Trend = "steady"
	switch step := max(1, 0.02*float64(a.Waiting+a.Active)); {
	case a.DemandPerMinute >= step:
		a.Trend = "rising"
	case a.DemandPerMinute <= -step:
		a.Trend = "falling"
	}
}

// slope is the change a minute of the line that fits the samples best: one odd sample at an end does not turn it.
func slope(list []sample, of func(*sample) int64) float64 {
	if len(list) < 2 {
		return 0
	}
	var meanX, meanY float64
	x := func(i int) float64 { return list[i].when.Sub(list[0].when).Minutes() }
	for i := range list {
		meanX += x(i) / float64(len(list))
		meanY += float64(of(&list[i])) / float64(len(list))
	}
	var xy, xx float64
	for i := range list {
		dx := x(i) - meanX
		xy += dx * (float64(of(&list[i])) - meanY)
		xx += dx * dx
	}
	if xx == 0 {
		return 0
	}
	return xy / xx
}
