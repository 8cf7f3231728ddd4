// Package adminlog reads rooms' logs through the admin API of a running usher, for a relay in a process of its own. It asks
// every 200 ms while nothing happens.
package adminlog

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/relay"
)

// Options of New.
type Options struct {
	Token string        // of the admin API
	Rooms []string      // default: all
	Poll  time.Duration // default 200 ms
}

// Source is the rooms of a running usher. It implements relay.Source.
type Source struct {
	base   string
	opts   Options
	client *http.Client
}

var _ relay.Source = (*Source)(nil)

// New makes a source of the admin listener at base, http://host:port. Nothing is connected to yet.
func New(base string, opts Options) *Source {
	if opts.Poll <= 0 {
		opts.Poll = 200 * time.Millisecond
	}
	return &Source{base: strings.TrimSuffix(base, "/"), opts: opts, client: &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token follows none
	}}
}

// refusal is a problem document of the API.
type refusal struct {
	Status int
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Next   string `json:"next_cursor"`
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the admin API answered %d %s: %s", r.Status, r.Code, r.Detail)
}

func (s *Source) get(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.opts.Token)
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		r := &refusal{Status: resp.StatusCode}
		_ = json.Unmarshal(body, r) // what is no problem document has a status all the same
		if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
			return relay.Classed(relay.Denied, r)
		}
		return r
	}
	return json.Unmarshal(body, out)
}

// Partitions implements relay.Source.
func (s *Source) Partitions(ctx context.Context) ([]relay.Partition, error) {
	var list []relay.Partition
	for _, id := range s.opts.Rooms {
		list = append(list, relay.Partition{Name: id})
	}
	if list != nil {
		return list, nil
	}
	var out struct {
		Rooms []struct {
			Config struct {
				ID string `json:"id"`
			} `json:"config"`
		} `json:"rooms"`
	}
	if err := s.get(ctx, "/admin/v1/rooms", &out); err != nil {
		return nil, err
	}
	for _, r := range out.Rooms {
		list = append(list, relay.Partition{Name: r.Config.ID})
	}
	return list, nil
}

// Close implements relay.Source.
func (s *Source) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Open implements relay.Source.
func (s *Source) Open(ctx context.Context, partition string, from relay.Start) (relay.Reader, error) {
	r := &reader{s: s, room: partition, after: string(from.After)}
	for from.After == "" && !from.At.IsZero() { // forward to that time
		events, next, err := r.page(ctx, 1000)
		if err != nil {
			return nil, err
		}
		for i := range events {
			if !events[i].At.Before(from.At) {
				return r, nil
			}
			r.after = string(events[i].Position)
		}
		if len(events) == 0 {
			break
		}
		r.after = next
	}
	return r, nil
}

type reader struct {
	s     *Source
	room  string
	after string
}

// entry is what is looked at of an event; the payload is all of it.
type entry struct {
	Room   string    `json:"room"`
	Epoch  uint64    `json:"epoch"`
	N      uint64    `json:"n"`
	At     time.Time `json:"at"`
	Type   string    `json:"type"`
	Ticket string    `json:"ticket_id"`
}

func (r *reader) page(ctx context.Context, max int) ([]relay.Event, string, error) {
	path := "/admin/v1/rooms/" + url.PathEscape(r.room) + "/log?limit=" + strconv.Itoa(min(max, 1000))
	if r.after != "" {
		path += "&after=" + url.QueryEscape(r.after)
	}
	var out struct {
		Events []json.RawMessage `json:"events"`
		Next   string            `json:"next_cursor"`
	}
	if err := r.s.get(ctx, path, &out); err != nil {
		if p, ok := err.(*refusal); ok && p.Code == "log_trimmed" && p.Next != "" {
			gap := &relay.GapError{
				Partition: r.room, From: relay.Position(r.after), To: relay.Position(p.Next), Lost: lost(r.after, p.Next),
				Cause: "the room's log is longer than log.max_bytes and no longer has what the relay had not read",
			}
			r.after = p.Next
			return nil, "", gap
		}
		if p, ok := err.(*refusal); ok && p.Code == "room_not_found" { // not made yet, or deleted; it may be made again
			return nil, r.after, nil
		}
		return nil, "", err
	}
	events := make([]relay.Event, len(out.Events))
	for i, raw := range out.Events {
		var e entry
		if err := json.Unmarshal(raw, &e); err != nil {
			return nil, "", fmt.Errorf("the log of room %s: %w", r.room, err)
		}
		at := strconv.FormatUint(e.Epoch, 10) + "." + strconv.FormatUint(e.N, 10)
		events[i] = relay.Event{ID: relay.RoomID(e.Room, e.Epoch, e.N), Key: e.Ticket, Type: e.Type, At: e.At, Payload: raw, Position: relay.Position(at)}
		if e.Ticket == "" {
			events[i].Key = e.Room
		}
	}
	return events, out.Next, nil
}

// lost counts the events between two cursors of one epoch.
func lost(from, to string) int64 {
	e1, n1, _ := strings.Cut(from, ".")
	e2, n2, _ := strings.Cut(to, ".")
	a, err1 := strconv.ParseInt(n1, 10, 64)
	b, err2 := strconv.ParseInt(n2, 10, 64)
	if err1 != nil || err2 != nil || e1 != e2 {
		return 0
	}
	return max(b-a, 0)
}

// Read implements relay.Reader.
func (r *reader) Read(ctx context.Context, max int) ([]relay.Event, error) {
	events, next, err := r.page(ctx, max)
	if err != nil {
		return nil, err
	}
	if len(events) == 0 {
		t := time.NewTimer(r.s.opts.Poll)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	}
	r.after = next
	return events, nil
}

// Position implements relay.Placed.
func (r *reader) Position() relay.Position { return relay.Position(r.after) }

// Close implements relay.Reader.
func (r *reader) Close() error { return nil }
