package loadtest

import (
	"time"
)

// SchemaName names the form of a Report. It changes when a field is taken away or changes its meaning; new fields may
// come without a change. JSONSchema describes it.
const SchemaName = "usher-bench/1"

// Report is the outcome of a run. Every duration says its unit in its name; a number that was not judged is null.
type Report struct {
	Schema      string    `json:"schema"`
	Version     string    `json:"version"` // of the bench, not of the server
	StartedAt   time.Time `json:"started_at"`
	EndedAt     time.Time `json:"ended_at"`
	Interrupted bool      `json:"interrupted"` // ended by the user; the figures are of what ran
	OK          bool      `json:"ok"`          // every fault that was judged is 0
	URL         string    `json:"url"`
	Room        string    `json:"room"`
	Order       string    `json:"order"` // of the room's queue; "" when nothing said so
	Machine     Machine   `json:"machine"`
	Options     Options   `json:"options"`
	Steps       []Step    `json:"steps"`
}

// Machine is the one the load came from; on loopback, the server's too.
type Machine struct {
	CPUs int    `json:"cpus"`
	OS   string `json:"os"`
	Go   string `json:"go"`
}

// Options are those of the run that bear on its figures.
type Options struct {
	RampS       float64 `json:"ramp_s"`
	StayS       float64 `json:"stay_s"`
	Abandon     float64 `json:"abandon"`
	Refresh     float64 `json:"refresh"`
	Transport   string  `json:"transport"`
	PollMS      float64 `json:"poll_ms"` // 0: as the server says
	Proxy       string  `json:"proxy"`
	Connections int     `json:"connections"` // 0: min(visitors, 4000)
	Seed        uint64  `json:"seed"`
}

// Step is the run of one size.
type Step struct {
	Visitors        int       `json:"visitors"`
	StartedAt       time.Time `json:"started_at"`
	DurationS       float64   `json:"duration_s"`
	Interrupted     bool      `json:"interrupted"`
	Faults          Faults    `json:"faults"`
	Crowd           Crowd     `json:"crowd"`
	Latency         []Latency `json:"latency"`
	Told            *Quantile `json:"freed_to_told"`     // from the admission in the log to the client that knows; null without the log
	PlaceUpdates    Quantile  `json:"place_updates"`     // from one place told to a waiter to the next
	EnterToAdmitted Quantile  `json:"enter_to_admitted"` // from when enter was due to the client that knows it is in
	Admissions      Rate      `json:"admissions"`
	Errors          []Errors  `json:"errors"`
	Server          Server    `json:"server"`
	Client          Client    `json:"client"`
	Series          Series    `json:"series"`
	Samples         []Sample  `json:"samples"`
}

// Faults must all be 0.
type Faults struct {
	OrderInversions    Fault `json:"order_inversions"`    // admitted before a living waiter with a smaller pos
	DoubleAdmissions   Fault `json:"double_admissions"`   // one ticket admitted twice, or held by two visitors
	LimitOverruns      Fault `json:"limit_overruns"`      // admissions beyond the limit
	LostPlaces         Fault `json:"lost_places"`         // seq or pos changed, place rose, ticket forgotten
	SetBack            Fault `json:"set_back"`            // of those: place rose, or waiting again once admitted, with ticket and pos kept
	UnloggedAdmissions Fault `json:"unlogged_admissions"` // told to a visitor, or ended, but not in the log
}

func (f *Faults) all() []namedFault {
	return []namedFault{
		{"order inversions", &f.OrderInversions}, {"double admissions", &f.DoubleAdmissions},
		{"limit overruns", &f.LimitOverruns}, {"lost places", &f.LostPlaces}, {"unlogged admissions", &f.UnloggedAdmissions},
	}
}

type namedFault struct {
	Name string
	*Fault
}

// Fault is one count.
type Fault struct {
	Count    *int64   `json:"count"`     // null: not judged
	JudgedBy string   `json:"judged_by"` // log, clients, or the reason why it was not judged
	Examples []string `json:"examples"`  // the first ten, in words
}

// Crowd is what became of the visitors.
type Crowd struct {
	Arrived      int64 `json:"arrived"`
	Answered     int64 `json:"answered"`     // enter was answered, with a ticket or a clear no
	Unanswered   int64 `json:"unanswered"`   // enter met errors for as long as patience lasted
	Refused      int64 `json:"refused"`      // enter was answered no
	Tickets      int64 `json:"tickets"`      //
	Admitted     int64 `json:"admitted"`     // knew it
	Claimed      int64 `json:"claimed"`      // used it
	Left         int64 `json:"left"`         // after their stay
	Vanished     int64 `json:"vanished"`     // while waiting, as told by --abandon
	MissedClaim  int64 `json:"missed_claim"` // learnt of the admission after its claim time
	Expired      int64 `json:"expired"`      // were still there when the session had run out
	Ended        int64 `json:"ended"`        // ticket ended by the server otherwise; without a cause it is a lost place
	Disconnected int64 `json:"disconnected"` // gave up after errors
	Waiting      int64 `json:"waiting"`      // still, when the run ended
	Inside       int64 `json:"inside"`       // still, when the run ended
}

// Quantile sums up many durations.
type Quantile struct {
	Count  uint64  `json:"count"`
	MeanMS float64 `json:"mean_ms"`
	P50MS  float64 `json:"p50_ms"`
	P95MS  float64 `json:"p95_ms"`
	P99MS  float64 `json:"p99_ms"`
	MaxMS  float64 `json:"max_ms"`
}

// Latency is that of one kind of exchange: response counts from when it was due, whatever the load generator was busy
// with (so a server that stalls cannot hide its stall by stopping the load); service from when it was sent.
type Latency struct {
	Op       string   `json:"op"` // enter refresh status presence renew visit leave
	Response Quantile `json:"response"`
	Service  Quantile `json:"service"`
}

// Rate is how fast admissions came.
type Rate struct {
	Total     int64   `json:"total"`      // in the log, or as far as clients know
	PerSecond float64 `json:"per_second"` // from the first to the last
	Peak      float64 `json:"peak_per_second"`
}

// Errors counts one kind of thing that went wrong.
type Errors struct {
	Kind  string `json:"kind"` // "enter: timeout"
	Count int64  `json:"count"`
}

// Client is the load generator's own cost.
type Client struct {
	CPUSeconds  float64 `json:"cpu_s"`
	CPUPercent  float64 `json:"cpu_percent"` // of one core
	Connections int64   `json:"connections"` // most workers, each with one keep-alive connection
}

// Series are columns over time since the step's start. Null: nothing was measured there.
type Series struct {
	Source   string          `json:"source"` // log: of the room; clients: of this run's visitors
	TS       []float64       `json:"t_s"`
	Waiting  []int64         `json:"waiting"`
	Active   []int64         `json:"active"` // the most at one moment
	Limit    []*int64        `json:"limit"`  // null: none, or unknown
	Admitted []int64         `json:"admitted"`
	Latency  []LatencySeries `json:"latency"`
}

// LatencySeries are percentiles of response over time.
type LatencySeries struct {
	Op    string    `json:"op"` // enter, status
	TS    []float64 `json:"t_s"`
	Count []uint64  `json:"count"`
	P50MS []float64 `json:"p50_ms"`
	P95MS []float64 `json:"p95_ms"`
	P99MS []float64 `json:"p99_ms"`
}

// Sample is one visitor's way.
type Sample struct {
	Pos   uint64    `json:"pos"`
	TS    []float64 `json:"t_s"`
	Place []int64   `json:"place"` // 0: admitted
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (h *histogram) summary() Quantile {
	return Quantile{h.count, ms(h.mean()), ms(h.quantile(0.5)), ms(h.quantile(0.95)), ms(h.quantile(0.99)), ms(h.max)}
}

// ok says that nothing that was judged was found wanting.
func (r *Report) ok() bool {
	for i := range r.Steps {
		for _, f := range r.Steps[i].Faults.all() {
			if f.Count != nil && *f.Count != 0 {
				return false
			}
		}
	}
	return true
}
