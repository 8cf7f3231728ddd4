package web

import "net/http"

// via is what sends the request to its origin.
func (f *forward) via(transport http.RoundTripper) http.RoundTripper {
	by := f.g.s.opts.Collapse
	if by == nil || f.entry == nil || !by.Collapses(f.entry.room.ID()) {
		return transport
	}
	return collapsed{by, f.entry.room.ID(), lastWord{transport}}
}

type collapsed struct {
	by   Collapse
	room string
	next http.RoundTripper
}

func (c collapsed) RoundTrip(r *http.Request) (*http.Response, error) {
	return c.by.RoundTrip(c.room, c.next, r)
}

// lastWord makes an answer that ends a session its visitor's alone: shared, it would end those of all who wait for it.
type lastWord struct{ http.RoundTripper }

func (l lastWord) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.RoundTripper.RoundTrip(r)
	if err == nil && len(res.Header["Usher-Session"]) > 0 {
		res.Header.Add("Cache-Control", "private")
	}
	return res, err
}

const codeBusy = "origin_busy"

// refused is what to say of an error of Options.Collapse; nil if it is not one.
func (f *forward) refused(err error) *problem {
	by := f.g.s.opts.Collapse
	if by == nil || f.entry == nil {
		return nil
	}
	status, code, retry, ok := by.Refusal(err)
	if !ok {
		return nil
	}
	detail := "the site behind the waiting room fails and is left alone for a moment; your session is kept"
	switch code {
	case codeBusy:
		detail = "too many wait for the site behind the waiting room; your session is kept"
	case "origin_timeout":
		detail = "the site behind the waiting room did not answer in time; your session is kept"
	case "shutting_down":
		detail = "this usher stops; try again to reach another"
	}
	return &problem{status: status, code: code, retry: retry, detail: detail}
}
