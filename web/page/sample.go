package page

import "time"

// Sample is one thing that a visitor can meet.
type Sample struct {
	Name  string // a state, with a variant after a dot where there are several: "waiting", "ended.idle"
	State State
}

// Samples are one rendering of everything that a visitor can meet, for the preview and for tests. now is the engine's
// time in them.
func Samples(now time.Time) []Sample {
	n := func(v int64) *int64 { return &v }
	s := func(v int) *int { return &v }
	in := func(d time.Duration) *time.Time { t := now.Add(d); return &t }
	base := func(v View) State {
		v.At = now
		return State{Room: "premiere", View: v, Next: "/premiere", Grace: 5 * time.Minute, Claim: time.Minute}
	}
	const id = "t7Qd2mXw9KfB4nRz"
	begun := func(first int64, s State) State { s.first = first; return s }
	other := func(s State, id string) State { s.View.TicketID = id; return s }
	waiting := base(View{State: Waiting, TicketID: id, Place: n(1234), Waiting: n(99400), ETALow: s(510), ETAHigh: s(690)})
	waiting.first = 3120
	message := waiting
	message.View.Place, message.View.Waiting = n(7), n(812)
	message.View.ETALow, message.View.ETAHigh = s(20), s(55)
	message.View.Message = "Screen 3 is sold out. There are still good seats for the late show at 22:30."
	random := base(View{State: Waiting, TicketID: id, Waiting: n(4310)})
	random.Order = "random"
	fresh := base(View{State: Waiting, TicketID: id, Place: n(1_048_576), Waiting: n(1_048_576)})

	out := []Sample{
		{"waiting", waiting}, {"waiting.message", other(message, "b3HcWk8sPz1LqXvG")},
		{"waiting.random", random}, {"waiting.fresh", other(fresh, "n5YtGd0rJm7CeUaS")},
		{"prequeue", base(View{State: Prequeue, TicketID: id, Waiting: n(18211), OpensAt: in(754 * time.Second),
			Draw: "9f2c1be07a44d1c86b0e35f7a1d29c6654e0c8b7f1a35d20"})},
		{"not_open", base(View{State: NotOpen, OpensAt: in(49*time.Hour + 754*time.Second), EntersAt: in(49*time.Hour - 146*time.Second)})},
		{"paused", begun(2040, base(View{State: Paused, TicketID: id, Place: n(1234), Waiting: n(99400),
			Message: "The payment service is being looked at. We expect to go on at about 19:40."}))},
		{"admitted", base(View{State: Admitted, TicketID: id})},
		{"ended", base(View{State: Ended, TicketID: id})},
	}
	for _, r := range []string{ReasonClaim, ReasonIdle, ReasonMax, ReasonAbandoned, ReasonLeft} {
		out = append(out, Sample{"ended." + r, base(View{State: Ended, Reason: r, TicketID: id})})
	}
	for _, st := range []string{Closed, Full, TooMany, Unavailable, Origin, Gone, Stuck} {
		out = append(out, Sample{st, base(View{State: st})})
	}
	return out
}
