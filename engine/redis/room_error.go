package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

// redisMends are the answers of Redis that somebody has to mend, by their first word.
var redisMends = map[string]string{
	"OOM":              "Redis is full and nothing was changed: give it more memory (maxmemory), or take something out of it",
	"READONLY":         "this Redis is a replica: name the master in engine.addrs, or use mode sentinel or cluster, which find it",
	"LOADING":          "Redis is reading its data from disk: it answers by itself when that is done",
	"MASTERDOWN":       "this Redis is a replica that has lost its master: name the master in engine.addrs",
	"CROSSSLOT":        "a Cluster was reached in mode single, or through a proxy that moves keys: set engine.mode: cluster",
	"MOVED":            "this is a Cluster: set engine.mode: cluster",
	"CLUSTERDOWN":      "the Cluster has slots without a master: see CLUSTER INFO on its nodes",
	"MISCONF":          "Redis cannot write its data to disk and takes nothing: see its log, free the disk",
	"NOREPLICAS":       "Redis has fewer replicas than min-replicas-to-write: bring them back",
	"NOAUTH":           "Redis wants a password: set engine.password, or USHER_REDIS_PASSWORD",
	"WRONGPASS":        "the password or the user is wrong: see engine.username and engine.password",
	"NOPERM":           "the ACL user lacks a right: give it ~usher:* &usher:* +@all -@dangerous +info",
	"WRONGTYPE":        "a key of this room is not of the type that usher made; usher redis check names it. Rename it",
	"BUSY":             "a script of somebody else keeps Redis busy: see its SLOWLOG",
	"TRYAGAIN":         "the Cluster is moving this room's slot: ask again",
	"ERR max number":   "Redis has no connection left: raise its maxclients",
	"DENIED":           "Redis is in protected mode: give it a password, or bind it to this network",
	"NOSCRIPT":         "Redis forgot a script and did not take it again; ask again",
	"ERR unknown comm": "this Redis does not know a command that usher needs: use version 7 or later, and see what is renamed",
}

// roomError tells what was certainly not done from what may have been. read: nothing was to be done.
func roomError(id string, err error, read bool) error {
	var re *rueidis.RedisError
	var op *net.OpError
	switch {
	case errors.As(err, &re):
		text := re.Error()
		if _, what, ok := strings.Cut(text, "USHERTYPE "); ok {
			what, _, _ = strings.Cut(what, " script:")
			return fmt.Errorf("%w: redis: %s", room.ErrUnavailable, what)
		}
		for word, mend := range redisMends {
			if strings.HasPrefix(text, word) || strings.Contains(text, " -"+word+" ") || strings.Contains(text, ": "+word+" ") || strings.Contains(text, "-"+word+" ") {
				return fmt.Errorf("%w: redis: room %s: %s; %s", room.ErrUnavailable, id, firstLine(text), mend)
			}
		}
		return fmt.Errorf("%w: redis: room %s: %s", room.ErrUnavailable, id, firstLine(text))
	case read, errors.As(err, &op) && op.Op == "dial", errors.Is(err, rueidis.ErrClosing), errors.Is(err, rueidis.ErrNoSlot):
		return fmt.Errorf("%w: redis: room %s: %w", room.ErrUnavailable, id, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: redis: room %s: no answer in time: %w", room.ErrUnknown, id, err)
	}
	return fmt.Errorf("%w: redis: room %s: %w", room.ErrUnknown, id, err)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}
