package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/ushergo/usher/room"
)

// Room is one room as the admin API shows it. Raw is the whole answer.
type Room struct {
	Config        room.Config `json:"config"`
	Revision      uint64      `json:"revision"`
	State         string      `json:"state"`
	Message       string      `json:"message"`
	Active        int64       `json:"active"`
	Waiting       int64       `json:"waiting"`
	Limit         *int64      `json:"limit"` // nil: none
	AdmittedTotal uint64      `json:"admitted_total"`
	RatePerMinute float64     `json:"rate_per_minute"` // measured

	Raw json.RawMessage `json:"-"`
}

// UnmarshalJSON keeps the whole answer beside what is known of it.
func (r *Room) UnmarshalJSON(data []byte) error {
	type plain Room
	if err := json.Unmarshal(data, (*plain)(r)); err != nil {
		return err
	}
	if r.Config.ID == "" {
		return errors.New("it has no config.id")
	}
	r.Raw = append(r.Raw[:0], data...)
	return nil
}

// Rooms lists all rooms.
func (c *Client) Rooms(ctx context.Context) ([]Room, error) {
	var out struct {
		Rooms []Room `json:"rooms"`
	}
	_, err := c.Do(ctx, http.MethodGet, "/admin/v1/rooms", nil, nil, &out)
	return out.Rooms, err
}

// Room shows one room.
func (c *Client) Room(ctx context.Context, id string) (*Room, error) {
	r := &Room{}
	if _, err := c.Do(ctx, http.MethodGet, roomPath(id), nil, nil, r); err != nil {
		return nil, err
	}
	return r, nil
}

// SetState opens, pauses or closes a room, with a message to those who wait.
func (c *Client) SetState(ctx context.Context, id, state, message string) error {
	body := map[string]string{"state": state, "message": message}
	_, err := c.Do(ctx, http.MethodPost, roomPath(id)+"/state", nil, body, nil)
	return err
}

// Patch changes what patch names and leaves the rest. It is guarded by the
// revision that was read just before, and repeated when somebody else was
// faster: a patch of single values loses nobody's work.
func (c *Client) Patch(ctx context.Context, id string, patch map[string]any) (*Room, error) {
	for attempt := 0; ; attempt++ {
		etag, err := c.Do(ctx, http.MethodGet, roomPath(id), nil, nil, nil)
		if err != nil {
			return nil, err
		}
		header := http.Header{"Content-Type": {"application/merge-patch+json"}}
		if etag != "" {
			header.Set("If-Match", etag)
		}
		r := &Room{}
		_, err = c.Do(ctx, http.MethodPatch, roomPath(id), header, patch, r)
		var refused *Error
		if errors.As(err, &refused) && refused.Status == http.StatusPreconditionFailed && attempt < 5 {
			continue
		}
		if err != nil {
			return nil, err
		}
		return r, nil
	}
}

func roomPath(id string) string { return "/admin/v1/rooms/" + url.PathEscape(id) }
