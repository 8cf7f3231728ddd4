// Package demo is what "usher demo" does: it starts a small cinema, puts an
// Usher in front of it in the same process, sends a crowd of real HTTP clients,
// and shows live what happens.
//
// It looks at the room from outside, as an operator would: by the admin API and
// the room's log. Everything it makes lies in one temporary folder that is gone
// when it ends.
//
// The view is a pure function from [State] and a size to lines ([Render]); a
// screen redraws only the lines that changed, so that it does not flicker, and
// leaves the terminal as it was. Where output is no terminal, a plain line is
// written every two seconds.
package demo
