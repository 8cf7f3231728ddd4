package demo

import (
	"context"
	"fmt"
	"net/http"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
)

const logChunk = 1000

// reader follows one room by the admin API. It is used by one goroutine.
type reader struct {
	api    *adminapi.Client
	room   string
	after  uint64
	counts Counts
	// each is told every event of the log, once and in order.
	each func(kind, ticketID, reason string, seq int64)
}

// read brings the counts up to date: what is now from the room's document, what
// happened from its log.
func (r *reader) read(ctx context.Context) (Counts, error) {
	for {
		var page struct {
			Events []struct {
				N        uint64 `json:"n"`
				Type     string `json:"type"`
				TicketID string `json:"ticket_id"`
				Data     struct {
					Seq    int64  `json:"seq"`
					Reason string `json:"reason"`
				} `json:"data"`
			} `json:"events"`
			Next uint64 `json:"next"`
		}
		path := fmt.Sprintf("/admin/v1/rooms/%s/log?after=%d&limit=%d", r.room, r.after, logChunk)
		if _, err := r.api.Do(ctx, http.MethodGet, path, nil, nil, &page); err != nil {
			return r.counts, err
		}
		for _, e := range page.Events {
			r.count(e.Type, e.Data.Reason)
			if r.each != nil {
				r.each(e.Type, e.TicketID, e.Data.Reason, e.Data.Seq)
			}
			r.after = max(r.after, e.N)
		}
		if len(page.Events) < logChunk {
			break
		}
	}
	room, err := r.api.Room(ctx, r.room)
	if err != nil {
		return r.counts, err
	}
	c := &r.counts
	c.State, c.Waiting, c.Active, c.Limit = room.State, int(room.Waiting), int(room.Active), 0
	if room.Limit != nil {
		c.Limit = int(*room.Limit)
	}
	return *c, nil
}

func (r *reader) count(kind, reason string) {
	c := &r.counts
	switch kind {
	case "entered":
		c.Entered++
	case "admitted":
		c.Admitted++
	case "claimed":
		c.Claimed++
	case "left":
		c.Left++
	case "abandoned":
		c.Abandoned++
	case "expired":
		if reason == "claim" {
			c.NoShow++
		} else {
			c.Ended++
		}
	}
}
