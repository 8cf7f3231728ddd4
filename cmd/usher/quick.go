package main

import (
	"strings"

	"github.com/ushergo/usher/config"
)

// asFlags renames what a file would call a setting to the flag that gave it,
// where there is no file.
func asFlags(err error) error {
	problems := config.ProblemsOf(err)
	if problems == nil {
		return err
	}
	names := strings.NewReplacer(
		"rooms[0].origin", "--origin", "rooms[0].capacity.active", "--active", "rooms[0].capacity.rate_per_minute", "--rate", "rooms[0].id", "--room",
		"public.listen", "--listen", "admin.listen", "--admin-listen", "public.url", "--url", "engine.dir", "--data")
	out := make(config.Problems, len(problems))
	for i, p := range problems {
		p.Path, p.What, p.Mend = names.Replace(p.Path), names.Replace(p.What), names.Replace(p.Mend)
		out[i] = p
	}
	return out
}
