package loadtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrape is what one reading of /metrics said.
type scrape struct {
	at       time.Time
	families map[string]*dto.MetricFamily
}

func (a *adminAPI) metrics(ctx context.Context) (*scrape, error) {
	body, err := a.get(ctx, "/metrics", 64<<20)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("GET /metrics: %w", err)
	}
	return &scrape{at: time.Now(), families: families}, nil
}

// value is a counter or gauge without labels.
func (s *scrape) value(name string) (float64, bool) {
	f := s.families[name]
	if f == nil || len(f.Metric) == 0 {
		return 0, false
	}
	m := f.Metric[0]
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue(), true
	case m.Gauge != nil:
		return m.Gauge.GetValue(), true
	case m.Untyped != nil:
		return m.Untyped.GetValue(), true
	}
	return 0, false
}

// Server is what the server said of itself, from /metrics before and after.
type Server struct {
	CPUSeconds  float64           `json:"cpu_s"`         // used during the step, all cores
	CPUPercent  float64           `json:"cpu_percent"`   // of one core
	RSSBefore   int64             `json:"rss_before"`    // bytes
	RSSMax      int64             `json:"rss_max"`       // bytes, of the samples taken every 2 s
	RSSAfter    int64             `json:"rss_after"`     // bytes
	Restarted   bool              `json:"restarted"`     // the process was another one at the end; CPU is the last one's
	Goroutines  int64             `json:"goroutines"`    // at the end
	Engine      []ServerHistogram `json:"engine"`        // of names usher_engine_…
	Unavailable string            `json:"unavailable"`   // why there are no figures; "" when there are
	LogEvents   int64             `json:"log_events"`    // of the room's log, replayed for the verdict
	LogWhole    bool              `json:"log_whole"`     // it reached back to the beginning of the room
	ClockSkewMS float64           `json:"clock_skew_ms"` // server's clock minus ours
}

// ServerHistogram is the growth of one histogram during a step. Quantiles are interpolated within its buckets.
type ServerHistogram struct {
	Name   string  `json:"name"`
	Labels string  `json:"labels"`
	Count  uint64  `json:"count"`
	Mean   float64 `json:"mean"` // in the metric's own unit, seconds when its name ends so
	P50    float64 `json:"p50"`
	P95    float64 `json:"p95"`
	P99    float64 `json:"p99"`
}

func serverBetween(before, after *scrape, rssMax float64) Server {
	var s Server
	delta := func(name string) float64 {
		b, _ := before.value(name)
		a, _ := after.value(name)
		if a < b {
			return a // a new process counts from 0
		}
		return a - b
	}
	b, okB := before.value("process_start_time_seconds")
	a, okA := after.value("process_start_time_seconds")
	s.Restarted = okA && okB && math.Abs(a-b) > 0.05
	if s.Restarted {
		s.CPUSeconds, _ = after.value("process_cpu_seconds_total")
	} else {
		s.CPUSeconds = delta("process_cpu_seconds_total")
	}
	if d := after.at.Sub(before.at).Seconds(); d > 0 && !s.Restarted {
		s.CPUPercent = 100 * s.CPUSeconds / d
	}
	rss, _ := before.value("process_resident_memory_bytes")
	s.RSSBefore = int64(rss)
	rss, _ = after.value("process_resident_memory_bytes")
	s.RSSAfter, s.RSSMax = int64(rss), int64(max(rss, rssMax, float64(s.RSSBefore)))
	g, _ := after.value("go_goroutines")
	s.Goroutines = int64(g)
	for name, f := range after.families {
		if strings.HasPrefix(name, "usher_engine_") && f.GetType() == dto.MetricType_HISTOGRAM {
			for _, m := range f.Metric {
				if h, ok := growth(before.families[name], m, s.Restarted); ok {
					h.Name = name
					s.Engine = append(s.Engine, h)
				}
			}
		}
	}
	slices.SortFunc(s.Engine, func(a, b ServerHistogram) int { return strings.Compare(a.Name+a.Labels, b.Name+b.Labels) })
	return s
}

func labels(m *dto.Metric) string {
	var l []string
	for _, p := range m.Label {
		l = append(l, p.GetName()+"="+p.GetValue())
	}
	sort.Strings(l)
	return strings.Join(l, ",")
}

// growth is what after counted beyond the same series in before.
func growth(before *dto.MetricFamily, after *dto.Metric, restarted bool) (ServerHistogram, bool) {
	h := ServerHistogram{Labels: labels(after)}
	now := after.Histogram
	if now == nil {
		return h, false
	}
	var was *dto.Histogram
	if before != nil && !restarted {
		for _, m := range before.Metric {
			if labels(m) == h.Labels {
				was = m.Histogram
			}
		}
	}
	earlier := map[float64]uint64{}
	for _, b := range was.GetBucket() {
		earlier[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	h.Count = now.GetSampleCount() - was.GetSampleCount()
	if h.Count == 0 || now.GetSampleCount() < was.GetSampleCount() {
		return h, false
	}
	h.Mean = (now.GetSampleSum() - was.GetSampleSum()) / float64(h.Count)
	type bound struct{ upper, cumulative float64 }
	var bounds []bound
	for _, b := range now.GetBucket() {
		bounds = append(bounds, bound{b.GetUpperBound(), float64(b.GetCumulativeCount() - earlier[b.GetUpperBound()])})
	}
	quantile := func(q float64) float64 {
		rank, low, seen := q*float64(h.Count), 0.0, 0.0
		for _, b := range bounds {
			if b.cumulative >= rank {
				if math.IsInf(b.upper, 1) || b.cumulative == seen {
					return low
				}
				return low + (b.upper-low)*(rank-seen)/(b.cumulative-seen)
			}
			low, seen = b.upper, b.cumulative
		}
		return low // beyond the last bound: at least this
	}
	h.P50, h.P95, h.P99 = quantile(0.5), quantile(0.95), quantile(0.99)
	return h, true
}
