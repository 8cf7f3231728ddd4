package redis

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/relay"
)

// DeadLetters keeps dead letters in Redis or Valkey, version 6 or later. It implements relay.DeadLetters.
//
// Layout, for a relay R, all in one slot:
//
//	usher:dlq:{R}         hash: v 1, seq (of the newest letter ever), bytes
//	usher:dlq:{R}:letters hash: event's id → "seq size first_ms last_ms " and the letter as JSON
//	usher:dlq:{R}:seq     zset: event's id by seq
//	usher:dlq:{R}:last    zset: event's id by the time of its last attempt, ms
//
// A letter is as durable as the server makes it: with appendfsync everysec a crash of the server may lose the letters of the
// last second, and a failover those that had not reached the replica.
type DeadLetters struct{ client rueidis.Client }

var _ relay.DeadLetters = (*DeadLetters)(nil)

// NewDeadLetters makes a store on a client that stays the caller's to close.
func NewDeadLetters(client rueidis.Client) *DeadLetters { return &DeadLetters{client} }

var (
	//go:embed dlq.lua
	dlqSource string

	dlqScript = rueidis.NewLuaScript(dlqSource)
)

// dlqChunk is how many letters one call reads, drops or looks at.
const dlqChunk = 100

func dlqKeys(of string) []string {
	base := "usher:dlq:{" + of + "}"
	return []string{base, base + ":letters", base + ":seq", base + ":last"}
}

func (d *DeadLetters) run(ctx context.Context, of string, args ...string) rueidis.RedisResult {
	return dlqScript.Exec(ctx, d.client, dlqKeys(of), args)
}

func (d *DeadLetters) explain(of string, err error) error {
	if err == nil {
		return nil
	}
	if _, what, ok := strings.Cut(err.Error(), "USHERLAYOUT "); ok {
		return fmt.Errorf("redis: %s", what)
	}
	return fmt.Errorf("redis: dead letters of %s: %w", of, err)
}

// Put implements relay.DeadLetters.
func (d *DeadLetters) Put(ctx context.Context, l relay.Letter, b relay.DeadBounds) error {
	b = b.WithDefaults()
	l.Seq = 0
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	have, err := d.run(ctx, l.Relay, "put", l.Event.ID, n(l.Size()), n(l.First.UnixNano()), n(l.Last.UnixMilli()), n(int64(b.Letters)), n(b.Bytes), string(text)).AsIntSlice()
	if err != nil {
		return d.explain(l.Relay, err)
	}
	if len(have) == 2 {
		return fmt.Errorf("%w: %d letters of at most %d, %d bytes of at most %d; bring them back or drop them: usher dlq", relay.ErrDeadFull, have[0], b.Letters, have[1], b.Bytes)
	}
	return nil
}

// read makes a letter of what the hash holds.
func (d *DeadLetters) read(of, text string) (l relay.Letter, err error) {
	parts := strings.SplitN(text, " ", 5)
	if len(parts) == 5 {
		if err = json.Unmarshal([]byte(parts[4]), &l); err == nil {
			var first int64
			if l.Seq, err = strconv.ParseUint(parts[0], 10, 64); err == nil {
				if first, err = strconv.ParseInt(parts[2], 10, 64); err == nil {
					l.First = time.Unix(0, first).UTC()
					return l, nil
				}
			}
		}
	}
	return l, fmt.Errorf("redis: the hash usher:dlq:{%s}:letters holds what is no letter of ours; rename it (%v)", of, err)
}

// List implements relay.DeadLetters.
func (d *DeadLetters) List(ctx context.Context, of string, after uint64, limit int) ([]relay.Letter, error) {
	var list []relay.Letter
	for len(list) < limit {
		texts, err := d.run(ctx, of, "list", strconv.FormatUint(after, 10), strconv.Itoa(min(limit-len(list), dlqChunk))).AsStrSlice()
		if err != nil {
			return nil, d.explain(of, err)
		}
		if len(texts) == 0 {
			break
		}
		for _, text := range texts {
			l, err := d.read(of, text)
			if err != nil {
				return nil, err
			}
			list, after = append(list, l), l.Seq
		}
	}
	return list, nil
}

// Get implements relay.DeadLetters.
func (d *DeadLetters) Get(ctx context.Context, of, id string) (relay.Letter, error) {
	text, err := d.client.Do(ctx, d.client.B().Hget().Key(dlqKeys(of)[1]).Field(id).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return relay.Letter{}, fmt.Errorf("%w: %s", relay.ErrNoLetter, id)
	}
	if err != nil {
		return relay.Letter{}, d.explain(of, err)
	}
	return d.read(of, text)
}

// Drop implements relay.DeadLetters.
func (d *DeadLetters) Drop(ctx context.Context, of string, ids ...string) (dropped int, err error) {
	for len(ids) > 0 {
		n := min(len(ids), dlqChunk)
		k, err := d.run(ctx, of, append([]string{"drop"}, ids[:n]...)...).AsInt64()
		if err != nil {
			return dropped, d.explain(of, err)
		}
		dropped, ids = dropped+int(k), ids[n:]
	}
	return dropped, nil
}

// Expire implements relay.DeadLetters.
func (d *DeadLetters) Expire(ctx context.Context, of string, before time.Time) (expired int, err error) {
	for {
		n, err := d.run(ctx, of, "expire", strconv.FormatInt(before.UnixMilli(), 10), strconv.Itoa(dlqChunk)).AsInt64()
		if err != nil {
			return expired, d.explain(of, err)
		}
		if expired += int(n); n < dlqChunk {
			return expired, nil
		}
	}
}

// Stats implements relay.DeadLetters.
func (d *DeadLetters) Stats(ctx context.Context, of string) (s relay.DeadStats, err error) {
	out, err := d.run(ctx, of, "stats").ToArray()
	if err != nil {
		return s, d.explain(of, err)
	}
	n, err1 := out[0].AsInt64()
	bytes, err2 := out[1].AsInt64()
	text, err3 := out[2].ToString()
	if err := errors.Join(err1, err2, err3); err != nil {
		return s, d.explain(of, err)
	}
	s.Letters, s.Bytes = int(n), bytes
	if text != "" {
		l, err := d.read(of, text)
		if err != nil {
			return s, err
		}
		s.Oldest = l.First
	}
	return s, nil
}
