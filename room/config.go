package room

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
)

// Order says who is admitted next.
type Order string

const (
	FIFO        Order = "fifo"        // lowest pos first
	Random      Order = "random"      // drawn among the living at each admission
	Passthrough Order = "passthrough" // nobody waits; the limit and the rate do not apply
	Reject      Order = "reject"      // nobody waits; whoever finds the room full is refused
)

// Unlimited is the limit of a room that is bounded by its rate alone.
const Unlimited = math.MaxInt64

// Config is what an operator says about one room. The JSON keys are those of the
// configuration file. DefaultConfig gives the defaults named here.
type Config struct {
	ID              string    `json:"id"`                // [a-z0-9-]{1,64}
	Match           []Match   `json:"match"`             // hosts and paths in front of which the room stands
	Origin          string    `json:"origin,omitempty"`  // base URL of the origin in proxy mode; empty: check mode only
	SharedCache     bool      `json:"shared_cache"`      // leave Cache-Control of proxied answers alone. Danger: a shared cache may hand one visitor's page to another
	CaseSensitive   bool      `json:"case_sensitive"`    // match paths by case. Danger: an origin that folds case can be entered by /SALE
	Capacity        Capacity  `json:"capacity"`          //
	Instances       Instances `json:"instances"`         //
	Session         Session   `json:"session"`           //
	Queue           Queue     `json:"queue"`             //
	Schedule        Schedule  `json:"schedule"`          //
	OnEngineFailure string    `json:"on_engine_failure"` // closed (default) | admitted | open. Danger: open lets everyone through while the engine is away
	CORS            []string  `json:"cors"`              // origins whose pages may call the API with the visitor's cookie
	Page            Page      `json:"page"`              //
	Log             Log       `json:"log"`               //
	TargetWait      Duration  `json:"target_wait"`       // default 30s; the analysis recommends more capacity beyond it
}

// Match names what a room stands in front of: Path and all below it on Host ("" = every host).
type Match struct {
	Host string `json:"host,omitempty"`
	Path string `json:"path"`
}

// Capacity bounds the sessions of a room.
type Capacity struct {
	Active        int64 `json:"active"`          // sessions at one moment; 0: no bound of its own
	PerInstance   int64 `json:"per_instance"`    // sessions for each living instance; 0: not used
	RatePerMinute int64 `json:"rate_per_minute"` // admissions in any 60 s of room time; 0: not used
}

// Instances says how the living instances of the protected service are counted.
type Instances struct {
	Source    string `json:"source"`              // nodes (default) | kubernetes | static
	Selector  string `json:"selector,omitempty"`  // of pods, with kubernetes
	Namespace string `json:"namespace,omitempty"` // of pods, with kubernetes; default: usher's own
	Fallback  int64  `json:"fallback"`            // default 2; the count with static, and when the source has been silent for 60 s
}

// Session bounds an admission.
type Session struct {
	Idle  Duration `json:"idle"`  // default 5m; ends this long after the last renewal
	Max   Duration `json:"max"`   // default 30m; ends this long after admission
	Claim Duration `json:"claim"` // default 60s; an admission must be used within it; 0: never a no-show
	Hold  bool     `json:"hold"`  // keep a slot until the last token and its leeway have run out
}

// Queue says how waiting is done.
type Queue struct {
	Order      Order    `json:"order"`       // default fifo
	Grace      Duration `json:"grace"`       // default 5m; a waiter not heard from for this long is abandoned
	MaxWaiting int64    `json:"max_waiting"` // default 1,000,000; beyond it 429 room_full
}

// Schedule opens and closes a room by the clock. Zero times: not scheduled.
type Schedule struct {
	OpensAt  Time     `json:"opens_at"`
	Prequeue Duration `json:"prequeue"` // default 15m; whoever comes in this time before OpensAt is shuffled
	ClosesAt Time     `json:"closes_at"`
}

// Page is the operator's folder of overrides for the waiting page.
type Page struct {
	Dir string `json:"dir,omitempty"`
}

// Log bounds the room's log.
type Log struct {
	Retain   Duration `json:"retain"`    // default 24h
	MaxBytes Size     `json:"max_bytes"` // default 1GiB
}

// DefaultConfig returns the defaults for a room of that name. It has no capacity yet.
func DefaultConfig(id string) Config {
	return Config{
		ID:              id,
		Instances:       Instances{Source: "nodes", Fallback: 2},
		Session:         Session{Idle: Duration(5 * time.Minute), Max: Duration(30 * time.Minute), Claim: Duration(time.Minute)},
		Queue:           Queue{Order: FIFO, Grace: Duration(5 * time.Minute), MaxWaiting: 1_000_000},
		Schedule:        Schedule{Prequeue: Duration(15 * time.Minute)},
		OnEngineFailure: "closed",
		Log:             Log{Retain: Duration(24 * time.Hour), MaxBytes: 1 << 30},
		TargetWait:      Duration(30 * time.Second),
	}
}

var idForm = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// ValidID says whether id can be a room's.
func ValidID(id string) bool { return idForm.MatchString(id) }

// FieldError is one thing wrong with a Config: which field, and how to mend it.
type FieldError struct {
	Field string // as in the configuration file, e.g. session.idle
	Msg   string // what is wrong and the mend
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Msg }

// Validate returns every fault of c, joined; each is a *FieldError.
func (c *Config) Validate() error {
	var errs []error
	bad := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, &FieldError{field, fmt.Sprintf(format, args...)})
		}
	}
	bad(idForm.MatchString(c.ID), "id", "%q is not a room id; use 1 to 64 of a-z, 0-9 and -", c.ID)
	bad(c.Capacity.Active >= 0, "capacity.active", "%d is negative; give the number of sessions at one moment", c.Capacity.Active)
	bad(c.Capacity.PerInstance >= 0, "capacity.per_instance", "%d is negative", c.Capacity.PerInstance)
	bad(c.Capacity.RatePerMinute >= 0, "capacity.rate_per_minute", "%d is negative", c.Capacity.RatePerMinute)
	bad(c.Capacity.RatePerMinute <= 10_000_000, "capacity.rate_per_minute", "%d is above 10,000,000; use 0 for no rate", c.Capacity.RatePerMinute)
	bad(c.Capacity.Active > 0 || c.Capacity.PerInstance > 0 || c.Capacity.RatePerMinute > 0 || c.Queue.Order == Passthrough,
		"capacity", "nothing bounds this room; set active, per_instance or rate_per_minute (to stop admissions, pause the room instead)")
	switch c.Instances.Source {
	case "nodes", "static", "kubernetes":
	default:
		bad(false, "instances.source", "%q is unknown; use nodes, kubernetes or static", c.Instances.Source)
	}
	bad(c.Instances.Source != "kubernetes" || c.Instances.Selector != "", "instances.selector", "is empty; name the labels of the pods, as app=shop")
	bad(c.Instances.Fallback >= 0, "instances.fallback", "%d is negative", c.Instances.Fallback)
	bad(c.Session.Idle >= Duration(time.Second), "session.idle", "%v is under 1s", c.Session.Idle)
	bad(c.Session.Max >= c.Session.Idle, "session.max", "%v is shorter than session.idle, %v", c.Session.Max, c.Session.Idle)
	bad(c.Session.Claim == 0 || c.Session.Claim >= Duration(time.Second), "session.claim", "%v is under 1s; 0 switches it off", c.Session.Claim)
	switch c.Queue.Order {
	case FIFO, Random, Passthrough, Reject:
	default:
		bad(false, "queue.order", "%q is unknown; use fifo, random, passthrough or reject", c.Queue.Order)
	}
	bad(c.Queue.Grace >= Duration(time.Second), "queue.grace", "%v is under 1s; clients ping every third of it", c.Queue.Grace)
	bad(c.Queue.MaxWaiting >= 0, "queue.max_waiting", "%d is negative", c.Queue.MaxWaiting)
	bad(c.Schedule.Prequeue >= 0, "schedule.prequeue", "%v is negative", c.Schedule.Prequeue)
	if !c.Schedule.OpensAt.IsZero() && !c.Schedule.ClosesAt.IsZero() {
		bad(c.Schedule.ClosesAt.After(c.Schedule.OpensAt.Time), "schedule.closes_at", "is not after opens_at")
	}
	switch c.OnEngineFailure {
	case "closed", "admitted", "open":
	default:
		bad(false, "on_engine_failure", "%q is unknown; use closed, admitted or open", c.OnEngineFailure)
	}
	for i, m := range c.Match {
		bad(strings.HasPrefix(m.Path, "/"), fmt.Sprintf("match[%d].path", i), "%q does not begin with /", m.Path)
	}
	bad(c.Log.Retain >= 0, "log.retain", "%v is negative", c.Log.Retain)
	bad(c.Log.MaxBytes >= 1<<20, "log.max_bytes", "%v is under 1MiB", c.Log.MaxBytes)
	bad(c.TargetWait >= 0, "target_wait", "%v is negative", c.TargetWait)
	return errors.Join(errs...)
}

// Limit is the number of sessions allowed with that many living instances.
func (c *Config) Limit(instances int64) int64 {
	limit := int64(Unlimited)
	if c.Capacity.Active > 0 {
		limit = c.Capacity.Active
	}
	if c.Capacity.PerInstance > 0 {
		limit = min(limit, c.Capacity.PerInstance*max(instances, 0))
	}
	return limit
}

// Duration is a time.Duration that reads and writes "5m".
type Duration time.Duration

func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes "5m".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration does, and "0".
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a duration; write it like 90s, 5m or 1h30m", b)
	}
	*d = Duration(v)
	return nil
}

// Time is a time.Time whose zero value reads and writes "".
type Time struct{ time.Time }

// MarshalText writes RFC 3339, or nothing for the zero time.
func (t Time) MarshalText() ([]byte, error) {
	if t.IsZero() {
		return nil, nil
	}
	return t.Time.MarshalText()
}

// MarshalJSON is needed because the embedded time.Time has one.
func (t Time) MarshalJSON() ([]byte, error) {
	b, err := t.MarshalText()
	if err != nil {
		return nil, err
	}
	return json.Marshal(string(b))
}

// UnmarshalText reads RFC 3339, or "" for the zero time.
func (t *Time) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*t = Time{}
		return nil
	}
	v, err := time.Parse(time.RFC3339, string(b))
	if err != nil {
		return fmt.Errorf("%q is not a time; write it like 2026-12-04T10:00:00+09:00", b)
	}
	*t = Time{v}
	return nil
}

// UnmarshalJSON is needed because the embedded time.Time has one.
func (t *Time) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	return t.UnmarshalText([]byte(s))
}

// Size is a number of bytes that reads and writes "1GiB".
type Size int64

var sizeUnits = []struct {
	name string
	n    int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1}}

func (s Size) String() string {
	for _, u := range sizeUnits[:4] {
		if int64(s) >= u.n && int64(s)%u.n == 0 {
			return fmt.Sprintf("%d%s", int64(s)/u.n, u.name)
		}
	}
	return fmt.Sprintf("%dB", int64(s))
}

// MarshalText writes "1GiB".
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a whole number with a unit (B, KB, KiB, MB, MiB, …) or without (bytes).
func (s *Size) UnmarshalText(b []byte) error {
	text, unit := strings.TrimSpace(string(b)), int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = strings.TrimSpace(rest), u.n
			break
		}
	}
	var n int64
	if _, err := fmt.Sscanf(text, "%d", &n); err != nil || n < 0 || fmt.Sprint(n) != text || n > math.MaxInt64/unit {
		return fmt.Errorf("%q is not a size; write it like 512MiB or 1GiB", b)
	}
	*s = Size(n * unit)
	return nil
}
