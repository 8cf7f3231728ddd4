package redis

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

// Finding is one thing that CheckRooms found.
type Finding struct {
	Room string // empty: of none
	Key  string // the key, or the first of several
	Keys int    // how many keys it concerns
	What string // what is wrong, and the mend
	// Removable: usher left it behind and nothing reads it; Clean removes it. What is not usher's, or may be somebody's place,
	// is never removed.
	Removable bool

	room, list bool // to be purged; to be put on the list, or taken off it
	orphans    []string
}

func (f Finding) String() string {
	s := f.Key + ": " + f.What
	if f.Keys > 1 {
		s = fmt.Sprintf("%s and %d more: %s", f.Key, f.Keys-1, f.What)
	}
	return s
}

// roomParts are the keys of a room by the part after its name; columns have a chunk's number behind.
var roomKinds = map[string]string{
	"h": "string", "a": "hash", "due": "zset", "held": "zset", "ended": "list", "kept": "hash", "line": "zset", "count": "hash", "silent": "zset",
	"req": "hash", "text": "hash", "log": "stream",
	"i:": "string", "s:": "string", "p:": "string", "r:": "string", "k:": "string", "b:": "string", "draw:": "zset", "dead:": "list",
}

func roomPartOf(part string) (kind, column string, chunk int, ok bool) {
	if kind, ok := roomKinds[part]; ok && !strings.HasSuffix(part, ":") {
		return kind, "", 0, true
	}
	column, number, found := strings.Cut(part, ":")
	kind, ok = roomKinds[column+":"]
	chunk, err := strconv.Atoi(number)
	return kind, column, chunk, found && ok && err == nil
}

// CheckRooms looks through all keys that begin with usher:room and tells what does not belong there, in the keys' order.
// It changes nothing, and no call of it takes Redis long.
func CheckRooms(ctx context.Context, client rueidis.Client) (rooms int, found []Finding, err error) {
	keys := map[string]bool{}
	for _, node := range client.Nodes() {
		for cursor, first := uint64(0), true; first || cursor != 0; first = false {
			got, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match("usher:room*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				return 0, nil, roomError("-", err, true)
			}
			cursor = got.Cursor
			for _, k := range got.Elements {
				keys[k] = true
			}
		}
	}
	parts := map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key == roomsKey {
			continue
		}
		rest, ok := strings.CutPrefix(key, "usher:room:{")
		id, part, ok2 := strings.Cut(rest, "}:")
		if !ok || !ok2 || !room.ValidID(id) {
			found = append(found, Finding{Key: key, Keys: 1, What: "begins as usher's keys do, and is none of this version; rename it, or use the version that made it"})
			continue
		}
		parts[id] = append(parts[id], part)
	}
	listed, err := client.Do(ctx, client.B().Smembers().Key(roomsKey).Build()).AsStrSlice()
	if err != nil {
		return 0, nil, roomError("-", err, true)
	}
	for _, id := range slices.Sorted(maps.Keys(parts)) {
		exists, list, err := checkRoom(ctx, client, id, parts[id], slices.Contains(listed, id))
		if err != nil {
			return 0, nil, err
		}
		found = append(found, list...)
		if exists {
			rooms++
		}
	}
	slices.Sort(listed)
	for _, id := range listed {
		if !slices.Contains(parts[id], "h") {
			found = append(found, Finding{Room: id, Key: roomsKey, Keys: 1, What: "lists room " + id + ", which does not exist", Removable: true, list: true})
		}
	}
	return rooms, found, nil
}

func checkRoom(ctx context.Context, client rueidis.Client, id string, parts []string, listed bool) (exists bool, found []Finding, err error) {
	base := roomBase(id)
	var kinds rueidis.Commands
	for _, p := range parts {
		kinds = append(kinds, client.B().Type().Key(base+p).Build())
	}
	columns := map[int][]string{}
	for i, got := range client.DoMulti(ctx, kinds...) {
		is, err := got.ToString()
		if err != nil {
			return false, nil, roomError(id, err, true)
		}
		kind, column, chunk, ok := roomPartOf(parts[i])
		switch {
		case !ok:
			found = append(found, Finding{Room: id, Key: base + parts[i], Keys: 1, What: "is no key of a room of this version; rename it, or use the version that made it"})
		case is != kind && is != "none":
			found = append(found, Finding{Room: id, Key: base + parts[i], Keys: 1, What: "is a " + is + ", a room needs a " + kind + " there; rename it, and see who wrote it"})
		case column != "" && column != "draw" && column != "dead":
			columns[chunk] = append(columns[chunk], base+parts[i])
		}
	}
	if slices.ContainsFunc(found, func(f Finding) bool {
		return f.Key == base+"h" || f.Key == base+"text" || f.Key == base+"kept" || f.Key == base+"count"
	}) {
		return false, found, nil
	}
	raw, err := client.Do(ctx, client.B().Get().Key(base+"h").Build()).ToString()
	if rueidis.IsRedisNil(err) {
		var keys []string
		for _, p := range parts {
			if _, _, _, ok := roomPartOf(p); ok && !slices.ContainsFunc(found, func(f Finding) bool { return f.Key == base+p }) {
				keys = append(keys, base+p)
			}
		}
		if len(keys) > 0 {
			found = append(found, Finding{Room: id, Key: keys[0], Keys: len(keys), What: "is of a room whose head is gone: places are lost with it; if it was deleted by hand, usher redis clean removes the rest", Removable: true, orphans: keys})
		}
		return false, found, nil
	}
	if err != nil {
		return false, nil, roomError(id, err, true)
	}
	h, err := readRoomHead(base+"h", raw, nil)
	if err != nil {
		return false, append(found, Finding{Room: id, Key: base + "h", Keys: 1, What: err.Error()}), nil
	}
	if !h.exists() {
		if len(parts) > 1 {
			found = append(found, Finding{Room: id, Key: base + parts[0], Keys: len(parts) - 1, What: "was left when the room was deleted", Removable: true, room: true})
		}
		if listed {
			found = append(found, Finding{Room: id, Key: roomsKey, Keys: 1, What: "lists room " + id + ", which was deleted", Removable: true, list: true})
		}
		return false, found, nil
	}
	if !listed {
		found = append(found, Finding{Room: id, Key: roomsKey, Keys: 1, What: "does not list room " + id + ", which exists: nodes that start do not find it; SADD " + roomsKey + " " + id + " mends it"})
	}
	kept, err := client.Do(ctx, client.B().Hkeys().Key(base+"kept").Build()).AsStrSlice()
	if err != nil {
		return false, nil, roomError(id, err, true)
	}
	counted, err := client.Do(ctx, client.B().Hkeys().Key(base+"count").Build()).AsStrSlice()
	if err != nil {
		return false, nil, roomError(id, err, true)
	}
	var orphans []string
	for _, chunk := range slices.Sorted(maps.Keys(columns)) {
		name := strconv.Itoa(chunk)
		for _, key := range columns[chunk] {
			bits := strings.HasPrefix(key, base+"b:")
			if bits && !slices.Contains(counted, name) || !bits && !slices.Contains(kept, name) {
				orphans = append(orphans, key)
			}
		}
	}
	if len(orphans) > 0 {
		found = append(found, Finding{Room: id, Key: orphans[0], Keys: len(orphans), What: "is of tickets that the room has forgotten", Removable: true, orphans: orphans})
	}
	return true, found, nil
}

//go:embed room_clean.lua
var roomCleanSource string

var roomCleanScript = rueidis.NewLuaScript(roomCleanSource)

// Clean removes what a Finding that is Removable names, after another look in the same step. It returns how many keys went.
func Clean(ctx context.Context, client rueidis.Client, f Finding) (int, error) {
	switch {
	case !f.Removable:
		return 0, nil
	case f.room:
		h := &roomHost{store: &Rooms{client: client}, id: f.Room, base: roomBase(f.Room)}
		return f.Keys, h.purge(ctx)
	case f.list:
		// A room of that name that is being made is on the list before it is there: it is put back by who makes it next.
		n, err := client.Do(ctx, client.B().Srem().Key(roomsKey).Member(f.Room).Build()).AsInt64()
		if err != nil {
			return 0, roomError(f.Room, err, false)
		}
		return int(n), nil
	}
	gone := 0
	for keys := range slices.Chunk(f.orphans, 100) {
		n, err := roomCleanScript.Exec(ctx, client, append([]string{roomBase(f.Room) + "h"}, keys...), nil).AsInt64()
		if err != nil {
			return gone, roomError(f.Room, err, false)
		}
		gone += int(n)
	}
	return gone, nil
}
