package config

// QuickOptions is what the flags of "usher serve" can say without a file.
// Empty fields take the default.
type QuickOptions struct {
	Room   string // default "main"
	Origin string
	Active int
	Rate   int // admissions per minute; 0: no limit
	Dir    string
	Listen string
	Admin  string
	URL    string
}

// Quick builds the configuration of one room that protects every path on every
// host, and applies the environment. It is not validated yet.
func Quick(o QuickOptions, getenv func(string) string) *Config {
	c := Default()
	r := DefaultRoom()
	r.ID = o.Room
	if r.ID == "" {
		r.ID = "main"
	}
	r.Match = []Match{{Path: "/"}}
	r.Origin = o.Origin
	r.Capacity.Active = o.Active
	r.Capacity.RatePerMinute = o.Rate
	c.Rooms = []Room{r}
	set := func(to *string, v string) {
		if v != "" {
			*to = v
		}
	}
	set(&c.Engine.Dir, o.Dir)
	set(&c.Public.Listen, o.Listen)
	set(&c.Admin.Listen, o.Admin)
	set(&c.Public.URL, o.URL)
	c.normalise()
	c.ApplyEnv(getenv)
	return c
}
