package web

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/ushergo/usher/room"
)

// nowDoc keeps a room's public document for a second: whatever the number waiting, it is made once.
type nowDoc struct {
	mu   sync.Mutex
	made time.Time
	now  room.Now
	body []byte
	etag string
}

const nowAge = time.Second

// get returns the document as of at most nowAge ago.
func (d *nowDoc) get(rm *room.Room) (now *room.Now, body []byte, etag string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.body == nil || time.Since(d.made) >= nowAge {
		n := rm.Now()
		d.made = time.Now()
		d.now, d.body = n, marshal(n)
		n.At = "" // what differs in nothing but the time is the same for a cache: a weak tag
		sum := sha256.Sum256(marshal(n))
		d.etag = `W/"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
	}
	n := d.now // callers keep it; slices in it are never written again
	return &n, d.body, d.etag
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // documents of ours, of plain values: cannot happen
		panic(err)
	}
	return b
}

// now answers the public document: the same for everybody, so that a cache may keep it.
func (c *call) now() {
	_, body, etag := c.entry.doc.get(c.entry.room)
	h := c.w.Header()
	h.Set("Cache-Control", "public, max-age=1")
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "ETag")
	h.Set("ETag", etag)
	if matchesTag(c.r.Header["If-None-Match"], etag) {
		c.w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = c.w.Write(body)
}

// etaAt is the wait from a place, between those that the document tells.
func etaAt(n *room.Now, place int64) *room.ETA {
	if place <= 0 {
		return nil
	}
	for i := range n.ETAs {
		b := &n.ETAs[i]
		if b.Place < place {
			continue
		}
		if b.Place == place || i == 0 {
			return &b.ETA
		}
		a := &n.ETAs[i-1]
		part := func(low, high int64) int64 { return low + (high-low)*(place-a.Place)/(b.Place-a.Place) }
		return &room.ETA{LowS: part(a.LowS, b.LowS), HighS: part(a.HighS, b.HighS), Basis: b.Basis}
	}
	if k := len(n.ETAs); k > 0 {
		return &n.ETAs[k-1].ETA // the line has grown since
	}
	return nil
}
