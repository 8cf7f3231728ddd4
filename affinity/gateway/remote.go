package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ushergo/usher/affinity"
)

// Remote is a directory (affinity.Store) behind an usher's service API, for instances that do not reach the store itself.
type Remote struct {
	base   string
	token  string
	client *http.Client
}

var _ affinity.Store = (*Remote)(nil)

// NewRemote makes a client of the API at base, like http://127.0.0.1:8081, with a service token. client nil: one that goes
// through no proxy.
func NewRemote(base, token string, client *http.Client) *Remote {
	if client == nil {
		client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second}}
	}
	return &Remote{strings.TrimRight(base, "/") + "/svc/v1/affinity/", token, client}
}

type reply struct {
	status int
	code   string
	at     time.Time
	body   []byte
}

// call asks. What is not an answer of the API is ErrUnavailable.
func (r *Remote) call(ctx context.Context, bad error, method, path string, in any) (reply, error) {
	if bad != nil {
		return reply{}, bad
	}
	lost := func(err error) (reply, error) { return reply{}, fmt.Errorf("%w: %w", affinity.ErrUnavailable, err) }
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return reply{}, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, body)
	if err != nil {
		return lost(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	req.Header.Set("Content-Type", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		return lost(err)
	}
	defer res.Body.Close()
	out := reply{status: res.StatusCode}
	if out.body, err = io.ReadAll(io.LimitReader(res.Body, 64<<20)); err != nil {
		return lost(err)
	}
	out.at, _ = time.Parse(time.RFC3339Nano, res.Header.Get("Usher-At"))
	if out.at = out.at.UTC(); res.StatusCode < 300 {
		return out, nil
	}
	var p struct{ Code, Detail string }
	_ = json.Unmarshal(out.body, &p)
	switch out.code = p.Code; p.Code {
	case "not_owner", "claim_spent", "no_session", "superseded", "no_instance":
		return out, nil
	case "bad_request":
		return out, fmt.Errorf("%w: %s", affinity.ErrBadRequest, p.Detail)
	case "foreign_layout":
		return out, fmt.Errorf("%w: %s", affinity.ErrForeign, p.Detail)
	case "unauthorized":
		return lost(errors.New("usher refuses the service token"))
	}
	return lost(fmt.Errorf("usher answers %d %s", res.StatusCode, p.Code))
}

func keyPath(space, key, what string) string {
	k := url.PathEscape(key)
	if k == "." || k == ".." { // a client would take it for a folder
		k = strings.ReplaceAll(k, ".", "%2E")
	}
	return space + "/" + k + what
}

// answerInto reads an answer's document.
func answerInto(out reply, to any) error {
	if err := json.Unmarshal(out.body, to); err != nil {
		return fmt.Errorf("%w: usher's answer is not what was expected: %w", affinity.ErrUnavailable, err)
	}
	return nil
}

// Claim implements affinity.Store.
func (r *Remote) Claim(ctx context.Context, c affinity.Claim) (affinity.Claimed, error) {
	out, err := r.call(ctx, c.Check(), http.MethodPost, keyPath(c.Space, c.Key, "/claim"),
		claimDoc{c.Owner.Instance, c.Owner.Epoch, c.Addr, c.Token, c.Build.Milliseconds()})
	if err != nil {
		return affinity.Claimed{}, err
	}
	switch out.code {
	case "claim_spent":
		return affinity.Claimed{Verdict: affinity.Spent, Row: affinity.Row{At: out.at}}, nil
	case "not_owner":
		var d struct{ Row rowDoc }
		err := answerInto(out, &d)
		return affinity.Claimed{Verdict: affinity.Theirs, Row: d.Row.row()}, err
	}
	var d rowDoc
	err = answerInto(out, &d)
	return affinity.Claimed{Verdict: affinity.Yours, Row: d.row()}, err
}

// Refresh implements affinity.Store.
func (r *Remote) Refresh(ctx context.Context, f affinity.Refresh) (affinity.Refreshed, error) {
	if err := f.Check(); err != nil {
		return affinity.Refreshed{}, err
	}
	all := affinity.Refreshed{Held: make([]bool, 0, len(f.Items))}
	for first := 0; first == 0 || first < len(f.Items); first += 500 {
		d := refreshDoc{f.Owner.Instance, f.Owner.Epoch, f.TTL.Milliseconds(), nil}
		for _, it := range f.Items[first:min(first+500, len(f.Items))] {
			d.Items = append(d.Items, itemDoc{it.Key, it.Generation, it.Ready, it.Session})
		}
		out, err := r.call(ctx, nil, http.MethodPost, f.Space+"/-/refresh", d)
		if err != nil {
			return affinity.Refreshed{}, err
		}
		var h heldDoc
		if err := answerInto(out, &h); err != nil {
			return affinity.Refreshed{}, err
		}
		if len(h.Held) != len(d.Items) {
			return affinity.Refreshed{}, fmt.Errorf("%w: usher answered %d rows of %d", affinity.ErrUnavailable, len(h.Held), len(d.Items))
		}
		all.At, all.Held = h.At.UTC(), append(all.Held, h.Held...)
	}
	return all, nil
}

// Clear implements affinity.Store.
func (r *Remote) Clear(ctx context.Context, c affinity.Clear) (affinity.Cleared, error) {
	out, err := r.call(ctx, c.Check(), http.MethodPost, keyPath(c.Space, c.Key, "/clear"), clearDoc{c.Owner.Instance, c.Owner.Epoch, c.Generation})
	return affinity.Cleared{At: out.at, Cleared: err == nil && out.code == ""}, err
}

// Get implements affinity.Store.
func (r *Remote) Get(ctx context.Context, space, key string) (affinity.Row, error) {
	out, err := r.call(ctx, affinity.CheckKey(space, key), http.MethodGet, keyPath(space, key, ""), nil)
	if err != nil {
		return affinity.Row{}, err
	}
	if out.code == "no_session" {
		return affinity.Row{At: out.at}, nil
	}
	var d rowDoc
	err = answerInto(out, &d)
	return d.row(), err
}

// Announce implements affinity.Store.
func (r *Remote) Announce(ctx context.Context, a affinity.Announce) (affinity.Announced, error) {
	path, method := a.Space+"/-/instances/"+a.Owner.Instance, http.MethodPut
	var doc any = instanceDoc{
		Epoch: a.Owner.Epoch, Addr: a.Addr, Sessions: a.Sessions, Max: a.Max, Draining: a.Draining, TTLms: a.TTL.Milliseconds(),
	}
	if a.TTL <= 0 {
		method, doc = http.MethodDelete, departDoc{a.Owner.Epoch}
	}
	out, err := r.call(ctx, a.Check(), method, path, doc)
	if err != nil || out.code == "superseded" || method == http.MethodDelete {
		return affinity.Announced{Superseded: out.code == "superseded"}, err
	}
	var d instanceDoc
	if err := answerInto(out, &d); err != nil {
		return affinity.Announced{}, err
	}
	got := affinity.Announced{Draining: d.Draining, DrainFor: time.Duration(d.DrainMS) * time.Millisecond}
	if d.At != nil {
		got.At = d.At.UTC()
	}
	return got, nil
}

// Instances implements affinity.Store.
func (r *Remote) Instances(ctx context.Context, space string) ([]affinity.Instance, error) {
	out, err := r.call(ctx, affinity.CheckSpace(space), http.MethodGet, space+"/-/instances", nil)
	if err != nil {
		return nil, err
	}
	var d struct{ Instances []instanceDoc }
	if err := answerInto(out, &d); err != nil {
		return nil, err
	}
	var list []affinity.Instance
	for _, in := range d.Instances {
		list = append(list, affinity.Instance{
			Owner: affinity.Identity{Instance: in.Instance, Epoch: in.Epoch}, Addr: in.Addr, Sessions: in.Sessions, Max: in.Max,
			Draining: in.Draining, Left: time.Duration(in.ExpiresIn) * time.Millisecond,
		})
	}
	return list, nil
}

// Drain implements affinity.Store.
func (r *Remote) Drain(ctx context.Context, d affinity.Drain) (bool, error) {
	out, err := r.call(ctx, d.Check(), http.MethodPost, d.Space+"/-/instances/"+d.Instance+"/drain", map[string]any{"on": d.On, "within_ms": d.For.Milliseconds()})
	return err == nil && out.code == "", err
}
