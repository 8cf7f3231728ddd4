package loadtest

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Config says what load to make. The zero value of a field is its default; URL and Room are required.
type Config struct {
	URL  string // of the public listener, e.g. http://127.0.0.1:8080, or of a site behind usher
	Room string

	Visitors int           // default 10,000
	Steps    []int         // several sizes one after another; replaces Visitors
	Ramp     time.Duration // default 10s; arrivals are spread over it evenly, with jitter
	Stay     time.Duration // default 20s; time inside, each visitor's own is drawn from 75 % to 125 % of it
	Abandon  float64       // share from 0 to 1 that vanishes while waiting, without a word
	Refresh  float64       // share that enters again while waiting, with the same request id and ticket

	Transport   string        // poll (default), sse or ws: how waiting visitors learn that it is their turn
	Poll        time.Duration // ask for status this often; 0: as often as the server says
	Proxy       string        // path of a proxied page that admitted visitors ask for; empty: they renew by the API
	Think       time.Duration // default 5s, between two proxied pages
	Connections int           // default min(visitors, 4000): connections shared by all but streams
	Timeout     time.Duration // default 30s, of one exchange
	Patience    time.Duration // default 60s: how long an act that meets errors is repeated
	Host        string        // Host header, when the room matches by host and the URL is an address
	Insecure    bool          // do not verify the server's certificate. Danger: only against a server of your own
	Forwarded   bool          // send X-Forwarded-For, an address for each visitor; the server must trust us as a proxy
	Seed        uint64        // of all drawn things but request ids; 0: from the clock, and reported

	Admin      string // base URL of the admin listener; empty: no log, no metrics
	AdminToken string // empty: the log cannot be read, and clients alone judge

	Progress func(Progress) // called once a second, from one goroutine at a time; may be nil
}

var roomName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// check completes c, or says what is wrong with it and how to mend it.
func (c *Config) check() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("%q is not an address to load; give one like http://127.0.0.1:8080", c.URL)
	}
	if !roomName.MatchString(c.Room) {
		return nil, fmt.Errorf("--room %q is not a room id; use 1 to 64 of a-z, 0-9 and -", c.Room)
	}
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	def(&c.Think, 5*time.Second)
	def(&c.Timeout, 30*time.Second)
	def(&c.Patience, time.Minute)
	if c.Transport == "" {
		c.Transport = "poll"
	}
	if len(c.Steps) == 0 {
		if c.Visitors == 0 {
			c.Visitors = 10_000
		}
		c.Steps = []int{c.Visitors}
	}
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano())
	}
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(slices.Min(c.Steps) < 1 || slices.Max(c.Steps) > 2_000_000, "--visitors and --steps are numbers from 1 to 2,000,000")
	bad(c.Ramp < 0 || c.Stay < 0 || c.Poll < 0, "--ramp, --stay and --poll must not be negative")
	bad(c.Abandon < 0 || c.Abandon > 1, "--abandon is a share from 0%% to 100%%")
	bad(c.Refresh < 0 || c.Refresh > 1, "--refresh is a share from 0%% to 100%%")
	bad(c.Transport != "poll" && c.Transport != "sse" && c.Transport != "ws", "--transport %q is unknown; use poll, sse or ws", c.Transport)
	bad(c.Proxy != "" && !strings.HasPrefix(c.Proxy, "/"), "--proxy %q is not a path; it begins with /", c.Proxy)
	bad(strings.ContainsFunc(c.Proxy+c.Host, func(r rune) bool { return r <= ' ' || r > '~' }), "--proxy and --host take printable ASCII without spaces")
	bad(c.Connections < 0, "--connections must not be negative")
	return u, errors.Join(errs...)
}

// Version is the build's, as the Go toolchain recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return info.Main.Version + " " + s.Value[:12]
		}
	}
	return info.Main.Version
}
