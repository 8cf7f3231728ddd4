package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ushergo/usher/room"
)

// roomTrimEvery is how often the node that ticks a room looks whether its log is too old or too long.
const roomTrimEvery = 10 * time.Second

func (h *roomHost) trim(ctx context.Context) {
	if err := h.store.Trim(ctx, h.id); err != nil && ctx.Err() == nil {
		h.store.opts.Logger.Warn("the room's log was not trimmed", "room", h.id, "err", err)
	}
}

// Trim cuts the log behind log.retain and log.max_bytes, and never before the last entry. What named readers still need
// is kept up to log.max_bytes. The node that ticks a room does it every ten seconds.
func (s *Rooms) Trim(ctx context.Context, id string) error {
	for {
		entry, err := s.trimTo(ctx, id)
		if err != nil || entry == "" {
			return err
		}
		gone, err := roomTrimScript.Exec(ctx, s.client, []string{roomBase(id) + "h"}, []string{"", "0", "0", "", entry}).AsInt64()
		if err != nil {
			return roomError(id, err, false)
		}
		if gone == 0 { // whole nodes of the stream go, or none
			return nil
		}
	}
}

// trimTo is the entry from which on the log is to be kept; empty: all of it.
func (s *Rooms) trimTo(ctx context.Context, id string) (string, error) {
	h, err := s.readHead(ctx, id)
	if err != nil {
		return "", err
	}
	var c room.Config
	if err := json.Unmarshal([]byte(h.text["config"]), &c); err != nil {
		return "", fmt.Errorf("%w: redis: configuration of room %s: %w", room.ErrLayout, id, err)
	}
	old := int64(h.num("at")) - time.Duration(c.Log.Retain).Microseconds()
	keep := room.Cursor{Epoch: 1 << 62}
	for name, v := range h.text {
		if strings.HasPrefix(name, "keep:") {
			if at, err := room.ParseCursor(v); err == nil && at.Before(keep) {
				keep = at
			}
		}
	}
	most := h.num("bytes") - float64(c.Log.MaxBytes)
	unwanted := func(e *roomEntry) bool {
		return e.bytes <= most || (c.Log.Retain > 0 && e.at < old && !keep.Before(e.last))
	}
	at := func(start string) (*roomEntry, error) {
		list, err := readRoomEntries(s.client.Do(ctx, s.client.B().Xrange().Key(roomBase(id)+"log").Start(start).End("+").Count(1).Build()).AsXRange())
		if err != nil {
			return nil, s.failed(id, err, true)
		}
		if len(list) == 0 {
			return nil, nil
		}
		return &list[0], nil
	}
	first, err := at("-")
	if err != nil || first == nil || !unwanted(first) {
		return "", err
	}
	// Bytes and times rise along the log, so the first entry to keep is found by halving, within one epoch at a time.
	lo, hi := first.first, uint64(h.num("n"))
	if first.last.Epoch < uint64(h.num("epoch")) {
		hi = 1 << 52
	}
	for lo < hi {
		mid := lo + (hi-lo)/2
		e, err := at(fmt.Sprintf("%d-%d", first.last.Epoch, mid))
		if err != nil {
			return "", err
		}
		if e != nil && e.last.Epoch == first.last.Epoch && unwanted(e) {
			lo = max(mid+1, e.last.N+1)
		} else {
			hi = mid
		}
	}
	e, err := at(fmt.Sprintf("%d-%d", first.last.Epoch, lo))
	if err != nil || e == nil {
		return "", err
	}
	return e.id, nil
}

// KeepFor implements room.Keeper. It is kept in Redis, for all nodes, until LetGo.
func (s *Rooms) KeepFor(ctx context.Context, id, reader string, after room.Cursor) error {
	if h, err := s.readHead(ctx, id); err != nil {
		return err
	} else if !h.exists() {
		return fmt.Errorf("%w: %s", room.ErrNotFound, id)
	}
	b := s.client.B().Hset().Key(roomBase(id)+"text").FieldValue().FieldValue("keep:"+reader, after.String()).Build()
	if err := s.client.Do(ctx, b).Error(); err != nil {
		return roomError(id, err, false)
	}
	return nil
}

// LetGo implements room.Keeper.
func (s *Rooms) LetGo(ctx context.Context, id, reader string) error {
	if err := s.client.Do(ctx, s.client.B().Hdel().Key(roomBase(id)+"text").Field("keep:"+reader).Build()).Error(); err != nil {
		return roomError(id, err, false)
	}
	return nil
}

var _ room.Keeper = (*Rooms)(nil)
