package keep

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/lease"
)

// seen counts what the lease's worker does.
type seen struct {
	beats, beatErrors, taken, deaths, lost atomic.Int64
	beatTime                               atomic.Int64
}

func newSeen() *seen { return &seen{} }

func (s *seen) Beaten(took time.Duration, err error) {
	s.beats.Add(1)
	s.beatTime.Add(int64(took))
	if err != nil {
		s.beatErrors.Add(1)
	}
}
func (s *seen) Taken(string, lease.Owner) { s.taken.Add(1) }
func (s *seen) Ended(string, error)       { s.lost.Add(1) }
func (s *seen) Died(lease.Owner)          { s.deaths.Add(1) }

// The figures; ids are no labels, they are as many as there are connections.
var (
	descConnections = describe("connections", "Connections that this worker holds, by state.", "state")
	descCap         = describe("cap", "Most connections of this worker.")
	descShare       = describe("share", "Connections that this worker should hold.")
	descOrphans     = describe("orphans", "Started connections without an owner, at this worker's last look.")
	descBlocked     = describe("blocked", "Connections that are not read until the sink has taken some of their messages.")
	descPending     = describe("pending", "Messages read and not stored.")
	descLag         = describe("lag_seconds", "Since the oldest message was read that is not stored.")
	descMessages    = describe("messages_total", "Messages read, by what became of them.", "outcome")
	descDials       = describe("dials_total", "Attempts to connect, by outcome.", "outcome")
	descLosses      = describe("losses_total", "Connections that ended or were not made, and are made again.")
	descStores      = describe("store_calls_total", "Calls of the sink, by outcome.", "outcome")
	descStoreTime   = describe("store_seconds_total", "Time spent in calls of the sink.")
	descBeats       = describe("beats_total", "Beats of this worker, by outcome.", "outcome")
	descBeatTime    = describe("beat_seconds_total", "Time spent in beats.")
	descTaken       = describe("taken_total", "Connections that became this worker's.")
	descEnded       = describe("ended_total", "Connections that this worker let go of or lost.")
	descDeaths      = describe("deaths_total", "Workers that this one found dead.")
	descWorkers     = describe("workers", "Living workers of the space.")
	descRecommended = describe("workers_recommended", "Workers that there should be: connections / cap, more after 2 min, fewer after 15 min.")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("usher_keeper_"+name, help, labels, nil)
}

func all() []*prometheus.Desc {
	return []*prometheus.Desc{
		descConnections, descCap, descShare, descOrphans, descBlocked, descPending, descLag, descMessages, descDials, descLosses, descStores,
		descStoreTime, descBeats, descBeatTime, descTaken, descEnded, descDeaths, descWorkers, descRecommended,
	}
}

// Describe implements prometheus.Collector.
func (k *Keep) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range all() {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (k *Keep) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	states := map[keeper.State]int{keeper.Connecting: 0, keeper.Open: 0, keeper.Pausing: 0, keeper.Invalid: 0, keeper.Closing: 0}
	for _, c := range k.keeper.Status() {
		states[c.State]++
	}
	for state, n := range states {
		gauge(descConnections, float64(n), string(state))
	}
	s := k.keeper.Stats()
	gauge(descBlocked, float64(s.Blocked))
	gauge(descPending, float64(s.Pending))
	gauge(descLag, s.Lag.Seconds())
	count(descMessages, float64(s.Stored), "stored")
	count(descMessages, float64(s.Duplicates), "duplicate")
	count(descMessages, float64(s.Skipped), "skipped")
	count(descDials, float64(s.Dials-s.DialErrors), "ok")
	count(descDials, float64(s.DialErrors), "error")
	count(descLosses, float64(s.Losses))
	count(descStores, float64(s.Stores-s.StoreErrors), "ok")
	count(descStores, float64(s.StoreErrors), "error")
	count(descStoreTime, s.StoreTime.Seconds())
	beats, failed := k.seen.beats.Load(), k.seen.beatErrors.Load()
	count(descBeats, float64(beats-failed), "ok")
	count(descBeats, float64(failed), "error")
	count(descBeatTime, time.Duration(k.seen.beatTime.Load()).Seconds())
	count(descTaken, float64(k.seen.taken.Load()))
	count(descEnded, float64(k.seen.lost.Load()))
	count(descDeaths, float64(k.seen.deaths.Load()))
	if w := k.keeper.Worker(); w != nil {
		st := w.Stats()
		gauge(descCap, float64(st.Cap))
		gauge(descShare, float64(st.Share))
		gauge(descOrphans, float64(st.Orphans))
		gauge(descWorkers, float64(st.Workers))
	}
	if a := k.keeper.Advice(); a.Cap > 0 {
		gauge(descRecommended, float64(a.Recommended))
	}
}
