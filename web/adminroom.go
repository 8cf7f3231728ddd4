package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web/page"
)

// maxConfig bounds what an operator may send, in bytes.
const maxConfig = 256 << 10

// roomDoc is a room as the admin API shows it.
type roomDoc struct {
	Config        room.Config  `json:"config"`
	Revision      uint64       `json:"revision"`
	State         string       `json:"state"` // as visitors see it: open, paused, closed, not_open or prequeue
	Message       string       `json:"message"`
	Active        int64        `json:"active"`
	Waiting       int64        `json:"waiting"`
	Limit         *int64       `json:"limit"` // null: none
	Instances     int64        `json:"instances"`
	AdmittedTotal uint64       `json:"admitted_total"`
	RatePerMinute float64      `json:"rate_per_minute"` // measured: admissions in the last minute
	Opening       room.Opening `json:"opening"`
}

func (s *Server) roomDoc(rm *room.Room) roomDoc {
	sum := rm.Summary()
	if sum.Config.Match == nil {
		sum.Config.Match = []room.Match{}
	}
	if sum.Config.CORS == nil {
		sum.Config.CORS = []string{}
	}
	return roomDoc{
		Config: sum.Config, Revision: sum.Revision, State: room.EffectiveState(sum.State, sum.Phase), Message: sum.Message,
		Active: sum.Active, Waiting: sum.Waiting, Limit: limitOf(&sum), Instances: sum.Instances,
		AdmittedTotal: sum.AdmittedTotal, RatePerMinute: s.history.perMinute(rm.ID(), sum.AdmittedTotal), Opening: sum.Opening,
	}
}

func (c *call) listRooms() {
	docs := []roomDoc{}
	for _, rm := range c.s.opts.Rooms.List() {
		docs = append(docs, c.s.roomDoc(rm))
	}
	c.json(http.StatusOK, "no-store", map[string]any{"rooms": docs})
}

func (c *call) getRoom() { c.showRoom(http.StatusOK, c.entry.room) }

func (c *call) showRoom(status int, rm *room.Room) {
	doc := c.s.roomDoc(rm)
	c.w.Header().Set("ETag", revisionTag(doc.Revision))
	c.json(status, "no-store", doc)
}

func revisionTag(revision uint64) string { return `"` + strconv.FormatUint(revision, 10) + `"` }

// putRoom makes a room, or replaces the configuration of one. What is not named takes its default.
func (c *call) putRoom() {
	if !validRoomID(c.id) {
		c.fail(&problem{status: 400, code: "bad_config", detail: "a room's id is 1 to 64 of a-z 0-9 -"})
		return
	}
	e, p := c.s.entry(c.ctx, c.id)
	if p != nil && p.code != "room_not_found" {
		c.fail(p)
		return
	}
	body, p := c.body(maxConfig)
	if p != nil {
		c.fail(p)
		return
	}
	config := room.DefaultConfig(c.id)
	if p := readConfig(body, &config); p != nil {
		c.fail(p)
		return
	}
	c.configure(e, config)
}

// patchRoom changes what a JSON merge patch (RFC 7396) names.
func (c *call) patchRoom() {
	body, p := c.body(maxConfig)
	if p != nil {
		c.fail(p)
		return
	}
	patch, ok := object(body)
	if !ok {
		c.fail(&problem{status: 400, code: "bad_request", detail: `the body is not a JSON object; send what is to change, as {"capacity": {"active": 600}}`})
		return
	}
	if inner, ok := patch["config"].(map[string]any); ok {
		patch = inner
	}
	config := room.DefaultConfig(c.id)
	current, _ := object(marshal(c.entry.room.Summary().Config))
	merged := marshal(merge(current, patch))
	if p := readConfig(merged, &config); p != nil {
		c.fail(p)
		return
	}
	c.configure(c.entry, config)
}

func object(b []byte) (map[string]any, bool) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var m map[string]any
	if d.Decode(&m) != nil || m == nil || d.More() {
		return nil, false
	}
	return m, true
}

// merge is RFC 7396 for objects.
func merge(into, patch map[string]any) map[string]any {
	if into == nil {
		into = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(into, k)
		case map[string]any:
			old, _ := into[k].(map[string]any)
			into[k] = merge(old, v)
		default:
			into[k] = v
		}
	}
	return into
}

// readConfig reads a configuration over its defaults, strictly. Whole room documents, as GET gives them, are
// taken too: what they say beside config is what usher measured, and is passed over.
func readConfig(body []byte, into *room.Config) *problem {
	bad := func(detail string) *problem { return &problem{status: 400, code: "bad_config", detail: detail} }
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil || whole == nil {
		return bad(`the body is not a JSON object with the room's configuration, as {"capacity": {"active": 600}}`)
	}
	if inner, ok := whole["config"]; ok {
		body = inner
	}
	id := into.ID
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return bad(strings.TrimPrefix(err.Error(), "json: "))
	}
	if d.More() {
		return bad("something follows the JSON object")
	}
	if into.ID != id {
		return bad("config.id is " + strconv.Quote(clip(into.ID)) + ", but the path names room " + id)
	}
	return nil
}

// configure puts a configuration in force, guarded by If-Match over an existing room.
func (c *call) configure(e *entry, config room.Config) {
	if err := config.Validate(); err != nil {
		c.fail(configProblem(err))
		return
	}
	if dir := config.Page.Dir; dir != "" {
		if _, err := page.New(dir); err != nil {
			c.fail(configProblem(&room.FieldError{Field: "page.dir", Msg: err.Error()}))
			return
		}
	}
	revision, p := c.precondition(e)
	if p != nil {
		c.fail(p)
		return
	}
	rm, err := c.s.opts.Rooms.Configure(c.ctx, config, revision)
	var field *room.FieldError
	switch {
	case err == nil:
	case errors.Is(err, room.ErrRevision):
		c.fail(c.conflict(e))
		return
	case errors.As(err, &field):
		c.fail(configProblem(err))
		return
	default:
		c.fail(c.s.roomProblem(e, nil, err))
		return
	}
	c.s.tableMu.Lock()
	c.s.makeTable(false)
	c.s.tableMu.Unlock()
	status := http.StatusOK
	if e == nil {
		status = http.StatusCreated
		c.w.Header().Set("Location", "/admin/v1/rooms/"+c.id)
	}
	c.s.log.Info("room configured by the admin API", "room", c.id, "revision", rm.Summary().Revision)
	c.showRoom(status, rm)
}

// configProblem lists every fault of a configuration.
func configProblem(err error) *problem {
	type fault struct {
		Field string `json:"field"`
		Msg   string `json:"msg"`
	}
	faults := []fault{}
	var walk func(error)
	walk = func(err error) {
		var field *room.FieldError
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range many.Unwrap() {
				walk(e)
			}
		} else if errors.As(err, &field) {
			faults = append(faults, fault{field.Field, field.Msg})
		}
	}
	walk(err)
	return &problem{status: 400, code: "bad_config", detail: strings.ReplaceAll(err.Error(), "\n", "; "), more: map[string]any{"errors": faults}}
}

// precondition reads If-Match and If-None-Match. It returns the revision over which a change may go; 0: any.
func (c *call) precondition(e *entry) (revision uint64, p *problem) {
	match, none := c.r.Header.Get("If-Match"), c.r.Header.Get("If-None-Match")
	switch {
	case e == nil && match != "":
		return 0, &problem{status: 412, code: "revision_conflict", detail: "there is no room " + c.id + " that If-Match could name"}
	case e == nil:
		return 0, nil
	case none != "":
		if matchesTag([]string{none}, revisionTag(e.room.Summary().Revision)) {
			return 0, c.conflict(e)
		}
	case match == "":
		return 0, &problem{status: 428, code: "precondition_required",
			detail: "the room exists; read it, and send the ETag of what you read as If-Match, so that nobody's change is lost"}
	}
	if match == "*" || match == "" {
		return 0, nil
	}
	text := strings.Trim(strings.TrimPrefix(strings.TrimSpace(match), "W/"), `"`)
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil || revision == 0 {
		return 0, c.conflict(e)
	}
	return revision, nil
}

func (c *call) conflict(e *entry) *problem {
	p := &problem{status: 412, code: "revision_conflict", detail: "the room was changed meanwhile; read it again"}
	if e != nil {
		p.more = map[string]any{"revision": e.room.Summary().Revision}
	}
	return p
}

func (c *call) deleteRoom() {
	if m := c.r.Header.Get("If-Match"); m != "" && m != "*" {
		revision, p := c.precondition(c.entry)
		if p == nil && revision != c.entry.room.Summary().Revision {
			p = c.conflict(c.entry)
		}
		if p != nil {
			c.fail(p)
			return
		}
	}
	force := c.r.URL.Query().Get("force") == "true"
	err := c.s.opts.Rooms.Delete(c.ctx, c.id, force)
	switch {
	case errors.Is(err, room.ErrWaiters):
		c.fail(&problem{status: 409, code: "room_has_waiters", detail: "people wait in this room; close it first and let it drain, or delete it with ?force=true",
			more: map[string]any{"waiting": c.entry.room.Summary().Waiting}})
		return
	case err != nil:
		c.fail(c.s.roomProblem(c.entry, nil, err))
		return
	}
	select { // what follows must not find it any more
	case <-c.entry.room.Gone():
	case <-c.ctx.Done():
	}
	c.s.tableMu.Lock()
	c.s.makeTable(false)
	c.s.tableMu.Unlock()
	c.s.log.Info("room deleted by the admin API", "room", c.id, "force", force)
	c.w.WriteHeader(http.StatusNoContent)
}

// setState opens, pauses or closes a room.
func (c *call) setState() {
	body, p := c.body(8 << 10)
	if p != nil {
		c.fail(p)
		return
	}
	bad := func(detail string) { c.fail(&problem{status: 400, code: "bad_request", detail: detail}) }
	var doc struct {
		State   string `json:"state"`
		Message string `json:"message"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil || d.More() {
		bad(`send {"state": "open" | "paused" | "closed", "message": "…"}`)
		return
	}
	switch {
	case doc.State != room.StateOpen && doc.State != room.StatePaused && doc.State != room.StateClosed:
		bad("state: " + strconv.Quote(clip(doc.State)) + " is unknown; use open, paused or closed")
		return
	case len(doc.Message) > 1000:
		bad("message: " + strconv.Itoa(len(doc.Message)) + " bytes; use up to 1000")
		return
	case !utf8.ValidString(doc.Message):
		bad("message: is not UTF-8")
		return
	}
	if err := c.entry.room.SetState(c.ctx, doc.State, doc.Message); err != nil {
		c.fail(c.s.roomProblem(c.entry, nil, err))
		return
	}
	c.s.log.Info("room state set by the admin API", "room", c.id, "state", doc.State)
	c.showRoom(http.StatusOK, c.entry.room)
}

// readLog reads the room's events after a cursor: epoch.n, or n within the present epoch.
func (c *call) readLog() {
	q := c.r.URL.Query()
	var after room.Cursor
	text := q.Get("after")
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		if n > 0 {
			after = room.Cursor{Epoch: c.entry.room.Head().Epoch, N: n}
		}
	} else if text != "" {
		if after, err = room.ParseCursor(text); err != nil {
			c.fail(&problem{status: 400, code: "bad_request", detail: "after: " + err.Error()})
			return
		}
	}
	limit := 100
	if l := q.Get("limit"); l != "" {
		n, err := strconv.Atoi(l)
		if err != nil || n < 1 {
			c.fail(&problem{status: 400, code: "bad_request", detail: "limit is not a number from 1 to 1000"})
			return
		}
		limit = min(n, 1000)
	}
	events, next, err := c.entry.room.Log(c.ctx, after, limit)
	if errors.Is(err, room.ErrTrimmed) {
		c.fail(&problem{status: 410, code: "log_trimmed", detail: "the log no longer reaches back so far; it begins after " + next.String(),
			more: map[string]any{"next": next.N, "next_cursor": next.String()}})
		return
	}
	if err != nil {
		c.fail(c.s.roomProblem(c.entry, nil, err))
		return
	}
	list := make([]room.PublicEvent, len(events))
	for i := range events {
		list[i] = events[i].Public(c.id)
	}
	c.json(http.StatusOK, "no-store", map[string]any{"events": list, "next": next.N, "next_cursor": next.String()})
}
