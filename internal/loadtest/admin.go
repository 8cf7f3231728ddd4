package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ushergo/usher/room"
)

// adminAPI reads what the operator may see. It changes nothing.
type adminAPI struct {
	base  string
	token string
	room  string
	http  *http.Client
}

// roomInfo is GET /admin/v1/rooms/{room}.
type roomInfo struct {
	Config struct {
		Queue struct {
			Order string        `json:"order"`
			Grace room.Duration `json:"grace"`
		} `json:"queue"`
	} `json:"config"`
	Active  int64  `json:"active"`
	Waiting int64  `json:"waiting"`
	Limit   *int64 `json:"limit"` // null: no limit on sessions
}

func newAdmin(base, token, name string) (*adminAPI, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--admin %q is not an address like http://127.0.0.1:8081", base)
	}
	return &adminAPI{base: strings.TrimRight(u.String(), "/"), token: token, room: name, http: &http.Client{
		Timeout: 30 * time.Second,
		// The token must not follow a redirect to somebody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// StatusError is a refusal of the admin API.
type StatusError struct {
	Status int
	Code   string
	Path   string
	next   string // of a trimmed log: where it begins
}

func (e *StatusError) Error() string {
	mend := ""
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		mend = "; give the admin token by --admin-token or USHER_ADMIN_TOKEN"
	case http.StatusNotFound:
		mend = "; is --admin the admin listener of the same usher, and the room's name right?"
	}
	return strings.TrimSpace(fmt.Sprintf("GET %s: %d %s", e.Path, e.Status, e.Code)) + mend
}

func (a *adminAPI) get(ctx context.Context, path string, limit int64) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return nil, err
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		resp.Body.Close()
		var more struct {
			Next string `json:"next_cursor"`
		}
		json.Unmarshal(body, &more) // if it says so
		return nil, &StatusError{Status: resp.StatusCode, Code: decodeProblem(body).Code, Path: path, next: more.Next}
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, limit), resp.Body}, nil
}

func (a *adminAPI) getJSON(ctx context.Context, path string, into any) error {
	body, err := a.get(ctx, path, 256<<20)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

func (a *adminAPI) info(ctx context.Context) (info roomInfo, err error) {
	err = a.getJSON(ctx, "/admin/v1/rooms/"+url.PathEscape(a.room), &info)
	return info, err
}

const logPage = 1000

// read gives every event after the cursor to each, page by page, up to the log's present end, and returns the new
// cursor. A cursor is what the server called it; the first is "0".
func (a *adminAPI) read(ctx context.Context, after string, each func(*logEvent)) (string, error) {
	for {
		var page struct {
			Events []logEvent      `json:"events"`
			Next   json.RawMessage `json:"next"`        // a number within the epoch
			Cursor string          `json:"next_cursor"` // epoch.n, where there is one
		}
		path := fmt.Sprintf("/admin/v1/rooms/%s/log?after=%s&limit=%d", url.PathEscape(a.room), url.QueryEscape(after), logPage)
		err := a.patient(ctx, path, &page)
		var refused *StatusError
		if errors.As(err, &refused) && refused.Status == http.StatusGone && refused.next != "" && refused.next != after {
			after = refused.next // what was trimmed meanwhile shows as a gap
			continue
		}
		if err != nil {
			return after, err
		}
		for i := range page.Events {
			each(&page.Events[i])
		}
		next := or(page.Cursor, strings.Trim(string(page.Next), `"`))
		if len(page.Events) == 0 || next == "" || next == "null" || next == after {
			return after, nil
		}
		after = next
	}
}

// patient repeats a read that meets a server which is restarting: the verdict on a run is worth half a minute.
func (a *adminAPI) patient(ctx context.Context, path string, into any) error {
	until := time.Now().Add(30 * time.Second)
	for {
		err := a.getJSON(ctx, path, into)
		var status *StatusError
		if err == nil || errors.As(err, &status) && status.Status < 500 || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}
