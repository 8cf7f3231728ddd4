package crowd

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"
)

var (
	showingLink = regexp.MustCompile(`href="([^"]*/showings/[0-9]+)"`)
	freeSeat    = regexp.MustCompile(`name="seat" value="([A-Z][0-9]+)"( checked)? required`)
)

// turnedAway ends a walk: the text is for people.
type turnedAway struct{ text string }

func (e turnedAway) Error() string { return e.text }

// shop walks the cinema of examples/cinema as a person does, reading its pages
// and sending its forms. One in eight only looks.
func (v *visitor) shop(ctx context.Context) {
	if v.r.IntN(2) == 0 {
		_, _ = v.ask(ctx, &sight{}) // looks at her ticket again: it may not have gone back to the line
	}
	think := v.c.opt.Stay / 3
	seat, err := "", error(nil)
	buys := v.r.IntN(8) > 0
	for try := 0; try < 6 && seat == "" && err == nil; try++ {
		seat, err = v.choose(ctx, think, buys)
		think /= 2 // whoever lost a seat is quicker the next time
		if !buys {
			break
		}
	}
	if ctx.Err() != nil {
		return
	}
	switch {
	case err == nil && seat != "":
		v.tell(Bought, seat)
		return // the site told the proxy that this session is over
	case err == nil && !buys:
		v.tell(LookedOn, "")
	case err == nil:
		v.tell(Failed, "lost every seat it tried for")
	case err == errSoldOut:
		v.tell(SoldOut, "")
	default:
		v.tell(Failed, err.Error())
	}
	_, _ = v.api(ctx, http.MethodPost, "leave", "") // courtesy; the session's idle time ends it too
}

var errSoldOut = turnedAway{"sold out"}

// choose tries for one seat; seat is empty if someone was quicker.
func (v *visitor) choose(ctx context.Context, think time.Duration, buys bool) (seat string, err error) {
	page, err := v.visit(ctx, v.c.opt.Path)
	if err != nil {
		return "", err
	}
	links := showingLink.FindAllStringSubmatch(page.body, -1)
	if !v.pause(ctx, think) {
		return "", ctx.Err()
	}
	if len(links) == 0 {
		return "", errSoldOut
	}
	showing := links[v.r.IntN(len(links))][1]
	if page, err = v.visit(ctx, showing); err != nil {
		return "", err
	}
	seats := freeSeat.FindAllStringSubmatch(page.body, -1)
	if !v.pause(ctx, think) {
		return "", ctx.Err()
	}
	if len(seats) == 0 || !buys {
		return "", nil
	}
	seat = seats[v.r.IntN(len(seats))][1]
	form := url.Values{"seat": {seat}}.Encode()
	a, err := v.try(ctx, func() (answer, error) { return v.submit(ctx, showing+"/hold", form) })
	if err != nil || a.code == http.StatusConflict {
		return "", err
	}
	next := a.header.Get("Location")
	if a.code != http.StatusSeeOther || next == "" {
		return "", turnedAway{fmt.Sprintf("hold answered %d", a.code)}
	}
	if _, err = v.visit(ctx, next); err != nil {
		return "", err
	}
	if !v.pause(ctx, think) {
		return "", ctx.Err()
	}
	a, err = v.try(ctx, func() (answer, error) { return v.submit(ctx, showing+"/pay", form) })
	if err != nil || a.code == http.StatusConflict {
		return "", err
	}
	if next = a.header.Get("Location"); a.code != http.StatusSeeOther || next == "" {
		return "", turnedAway{fmt.Sprintf("pay answered %d", a.code)}
	}
	if _, err = v.visit(ctx, next); err != nil {
		return "", err
	}
	return seat, nil
}

// visit opens a page of the site; anything but the page is an error.
func (v *visitor) visit(ctx context.Context, path string) (answer, error) {
	a, err := v.try(ctx, func() (answer, error) { return v.open(ctx, path) })
	if err == nil && a.code != http.StatusOK {
		err = turnedAway{fmt.Sprintf("%s answered %d to an admitted visitor", path, a.code)}
	}
	return a, err
}

// try asks again when the site is overrun, as it asks to.
func (v *visitor) try(ctx context.Context, f func() (answer, error)) (a answer, err error) {
	for range 4 {
		if a, err = f(); err == nil && a.code != http.StatusServiceUnavailable {
			return a, nil
		}
		if !v.pause(ctx, a.retryAfter()) {
			return a, ctx.Err()
		}
	}
	return a, err
}
