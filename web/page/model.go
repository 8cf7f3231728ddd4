package page

import (
	"html/template"
	"time"
)

// model is what the template sees. Its exported fields and methods are the contract with operators' templates: they
// are listed in docs/page.md.
type model struct {
	Lang, Theme, Nonce     string
	Room, Name             string
	State, Reason          string
	Title, Heading, Lead   string
	Place, Behind, Waiting string // in words; empty where not known
	ETA                    string
	Countdown              string
	Message, Ticket, Draw  string
	Button, Again          string
	Next                   string
	Refresh                int
	Logo                   template.URL
	Style                  template.CSS
	Script                 template.JS
	Data                   data
	Texts                  template.JS // every text of the language, as JSON that is safe in a script

	t texts
}

// T gives a text by key, with {name} placeholders filled from pairs.
func (m *model) T(key string, pairs ...string) string { return m.t.say(key, pairs...) }

// data is what the script starts from.
type data struct {
	Room     string     `json:"room"`
	Name     string     `json:"name"`
	Lang     string     `json:"lang"`
	State    string     `json:"state"`
	Reason   string     `json:"reason"`
	Ticket   string     `json:"ticket"`
	Place    *int64     `json:"place"`
	Waiting  *int64     `json:"waiting"`
	Behind   *int64     `json:"behind"`
	ETA      *etaRange  `json:"eta"`
	OpensAt  *time.Time `json:"opens_at"`
	EntersAt *time.Time `json:"enters_at"`
	Message  string     `json:"message"`
	At       time.Time  `json:"at"`
	API      string     `json:"api"`
	Next     string     `json:"next"`
	Retry    int        `json:"retry_s"`
	Claim    int        `json:"claim_s"`
	Grace    string     `json:"grace"`
	ClaimSay string     `json:"claim"`
	Order    string     `json:"order"`
	Preview  bool       `json:"preview,omitempty"`
	First    int64      `json:"first,omitempty"`
}

type etaRange struct {
	LowS  int `json:"low_s"`
	HighS int `json:"high_s"`
}

func (p *Pages) model(s State) *model {
	s.defaults()
	lang := Negotiate(s.Lang, p.langs)
	t, v := p.texts[lang], s.View
	m := &model{
		Lang: lang, Theme: s.Theme, Nonce: s.Nonce, Room: s.Room, Name: s.Name,
		State: v.State, Reason: v.Reason, Message: v.Message, Ticket: v.TicketID, Draw: v.Draw,
		Again: s.Again, Next: s.Next, Refresh: min(s.refresh(), maxRefresh),
		Logo: p.logo, Style: p.style, Script: p.script, Texts: p.raw[lang], t: t,
	}
	if m.Name == "" {
		m.Name = t.first("room_name")
	}
	if m.Name == "" {
		m.Name = readable(s.Room)
	}
	if v.State == Ended && v.Reason == "" {
		m.Reason = "other"
	}
	if v.State == Waiting && s.Order == "random" {
		m.Reason = "random"
	}
	if (v.State == Prequeue || v.State == NotOpen) && v.OpensAt == nil && v.EntersAt == nil {
		m.Reason = "soon"
	}
	if v.Place != nil && *v.Place > 0 {
		m.Place = number(*v.Place)
	}
	if v.Behind != nil {
		m.Behind = t.say("people", "n", number(*v.Behind))
	}
	if v.Waiting != nil {
		m.Waiting = t.say("people", "n", number(*v.Waiting))
	}
	var eta *etaRange
	if v.ETALow != nil && v.ETAHigh != nil {
		eta = &etaRange{*v.ETALow, *v.ETAHigh}
		m.ETA = t.eta(*v.ETALow, *v.ETAHigh)
	}
	target := v.OpensAt
	if v.State == NotOpen && v.EntersAt != nil {
		target = v.EntersAt
	}
	when := ""
	if target != nil {
		m.Countdown = t.countdown(target.Sub(v.At))
		when = target.UTC().Format("2006-01-02 15:04 UTC") // the script says it in the visitor's own time
	}
	grace, claim := t.duration(s.Grace), t.duration(s.Claim)
	m.Heading = t.first(v.State+".heading."+m.Reason, v.State+".heading")
	m.Lead = fill(t.first(v.State+".lead."+m.Reason, v.State+".lead"), "time", when, "grace", grace, "claim", claim)
	m.Button = t[v.State+".button"]
	title := t[v.State+".title"]
	if v.State == Waiting && m.Place == "" {
		title = t["waiting.title.unknown"]
	}
	m.Title = fill(title, "place", m.Place, "countdown", m.Countdown, "name", m.Name)

	claimS := int(s.Claim / time.Second)
	if claimS <= 0 {
		claimS = 60
	}
	m.Data = data{
		Room: s.Room, Name: m.Name, Lang: lang, State: v.State, Reason: m.Reason, Ticket: v.TicketID,
		Place: v.Place, Waiting: v.Waiting, Behind: v.Behind, ETA: eta, OpensAt: v.OpensAt, EntersAt: v.EntersAt,
		Message: v.Message, At: v.At, API: s.APIBase, Next: s.Next, Retry: s.RetryAfter,
		Claim: claimS, Grace: grace, ClaimSay: claim, Order: s.Order,
		Preview: s.preview, First: s.first,
	}
	return m
}
