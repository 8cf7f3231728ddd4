package page

import (
	"strconv"
	"strings"
	"time"
)

// texts are one language's words by key, as in assets/text/en.json.
type texts map[string]string

// say fills {name} placeholders: say("eta.one", "a", "5 min").
func (t texts) say(key string, pairs ...string) string {
	return fill(t[key], pairs...)
}

func fill(s string, pairs ...string) string {
	for i := 0; i+1 < len(pairs); i += 2 {
		s = strings.ReplaceAll(s, "{"+pairs[i]+"}", pairs[i+1])
	}
	return s
}

// first gives the words of the first key that has any.
func (t texts) first(keys ...string) string {
	for _, k := range keys {
		if s := t[k]; s != "" {
			return s
		}
	}
	return ""
}

// number groups thousands by commas, which English, Korean and Japanese share.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	neg := ""
	if n < 0 {
		neg, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return neg + s
}

// eta says a range of seconds in words that promise no more than is known: whole minutes up to an hour and a half,
// tens of minutes up to five hours, then hours. The lower end is rounded down and the upper end up. words.js says the
// same; both are tested by testdata/words.json.
func (t texts) eta(lowS, highS int) string {
	low, high := max(min(lowS, highS), 0), max(lowS, highS, 0)
	if high <= 60 {
		return t["eta.moment"]
	}
	lo, hi := low/60, (high+59)/60
	if hi <= 90 {
		switch {
		case lo == 0:
			return t.say("eta.upto", "b", t.minutes(hi))
		case lo == hi:
			return t.say("eta.one", "a", t.minutes(hi))
		}
		return t.say("eta.range_minutes", "a", strconv.Itoa(lo), "b", strconv.Itoa(hi))
	}
	step := 10
	if hi > 300 {
		step = 60
	}
	lo, hi = lo/step*step, (hi+step-1)/step*step
	switch {
	case lo == 0:
		return t.say("eta.upto", "b", t.hours(hi))
	case lo == hi:
		return t.say("eta.one", "a", t.hours(hi))
	}
	return t.say("eta.range", "a", t.hours(lo), "b", t.hours(hi))
}

func (t texts) minutes(n int) string { return t.say("eta.minutes", "m", strconv.Itoa(n)) }

// hours says a number of minutes in hours and minutes.
func (t texts) hours(n int) string {
	h, m := n/60, n%60
	switch {
	case h == 0:
		return t.minutes(n)
	case m == 0:
		return t.say("eta.hours", "h", strconv.Itoa(h))
	}
	return t.say("eta.hours_minutes", "h", strconv.Itoa(h), "m", strconv.Itoa(m))
}

// duration says a setting such as the grace: seconds under two minutes, then minutes, then hours.
func (t texts) duration(d time.Duration) string {
	s := int64(d / time.Second)
	switch {
	case s <= 0:
		return t["duration.some"]
	case s == 60:
		return t["duration.minute"]
	case s < 120:
		return t.say("duration.seconds", "n", number(s))
	case s == 3600:
		return t["duration.hour"]
	case s >= 7200 && s%3600 == 0:
		return t.say("duration.hours", "n", number(s/3600))
	}
	return t.say("duration.minutes", "n", number(s/60))
}

// countdown is 1:02:03, with days before it when there are any.
func (t texts) countdown(d time.Duration) string {
	s := max(int64(d/time.Second), 0)
	two := func(n int64) string { return string([]byte{byte('0' + n/10), byte('0' + n%10)}) }
	clock := two(s%86400/3600) + ":" + two(s%3600/60) + ":" + two(s%60)
	if days := s / 86400; days > 0 {
		return t.say("countdown.days", "n", number(days)) + " " + clock
	}
	return clock
}
