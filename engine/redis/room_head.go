package redis

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"

	"github.com/ushergo/usher/room"
)

// roomLayout is the version in every head and log entry.
const roomLayout = 1

// headNames are the head's fields, in order, as room_prelude.lua names them.
var headNames = func() map[string]int {
	list := regexp.MustCompile(`(?s)local NAMES = \{(.*?)\}`).FindStringSubmatch(roomPrelude)[1]
	names := map[string]int{}
	for i, m := range regexp.MustCompile(`'(\w+)'`).FindAllStringSubmatch(list, -1) {
		names[m[1]] = i
	}
	return names
}()

// roomHead is a room's head and its texts.
type roomHead struct {
	values []float64 // in the order of headNames, then orders, draws and cuts
	replid string
	text   map[string]string
}

// readRoomHead reads what room_prelude.lua's save writes.
func readRoomHead(key, raw string, text map[string]string) (*roomHead, error) {
	n := (len(raw) - 40) / 8
	if len(raw) >= 8 && roomDouble(raw) != roomLayout || len(raw) < 48 || n < len(headNames) {
		v := math.NaN()
		if len(raw) >= 8 {
			v = roomDouble(raw)
		}
		return nil, fmt.Errorf("%w: redis: key %s has layout %v, this version reads %d; use one version of usher", room.ErrLayout, key, v, roomLayout)
	}
	h := &roomHead{values: make([]float64, n), replid: raw[len(raw)-40:], text: text}
	for i := range h.values {
		h.values[i] = roomDouble(raw[8*i:])
	}
	if n != len(headNames)+2*h.int("orders")+2*h.int("draws")+4*h.int("cuts") {
		return nil, fmt.Errorf("%w: redis: key %s is damaged", room.ErrLayout, key)
	}
	return h, nil
}

func (h *roomHead) num(name string) float64 { return h.values[headNames[name]] }
func (h *roomHead) int(name string) int     { return int(h.num(name)) }
func (h *roomHead) micros(name string) time.Duration {
	return time.Duration(h.num(name)) * time.Microsecond
}
func (h *roomHead) exists() bool { return h.int("gone") == 0 && h.int("revision") > 0 }
func (h *roomHead) cursor() room.Cursor {
	return room.Cursor{Epoch: uint64(h.num("epoch")), N: uint64(h.num("n"))}
}

// floor is the last event that the log no longer holds.
func (h *roomHead) floor() room.Cursor {
	c, _ := room.ParseCursor(h.text["floor"])
	return c
}

func (h *roomHead) limit() (l room.LimitData, err error) {
	l.Revision, l.Instances, l.Limit, l.Digest = uint64(h.num("revision")), int64(h.num("instances")), limitNumber(h.num("limit")), h.text["digest"]
	if err = json.Unmarshal([]byte(h.text["config"]), &l.Config); err != nil {
		err = fmt.Errorf("%w: redis: a room's configuration: %w", room.ErrLayout, err)
	}
	return l, err
}

func limitNumber(v float64) int64 {
	if v >= 9e18 {
		return room.Unlimited
	}
	return int64(v)
}

func (h *roomHead) state() room.StateData {
	d := room.StateData{
		State: stateName(byte(h.int("state"))), Phase: roomPhases[h.int("phase")], Closed: h.int("closed") == 1, Message: h.text["message"],
		Opening: room.Opening{SeedHash: h.text["seedhash"], Seed: h.text["seedhex"], Root: h.text["root"]},
	}
	d.Opening.FirstPos, _ = strconv.ParseUint(h.text["first"], 10, 64)
	d.Opening.Count, _ = strconv.ParseUint(h.text["count"], 10, 64)
	if s := h.text["seed"]; s != "" {
		d.Seed = []byte(s)
	}
	return d
}

func (h *roomHead) orders() (list []room.OrderFrom) {
	for i := range h.int("orders") {
		v := h.values[len(headNames)+2*i:]
		list = append(list, room.OrderFrom{Pos: uint64(v[0]), Order: roomOrders[int(v[1])]})
	}
	return list
}

// draws are the first seqs and the lengths of the openings with somebody still in line.
func (h *roomHead) draws() (list [][2]uint64) {
	for i := range h.int("draws") {
		v := h.values[len(headNames)+2*h.int("orders")+2*i:]
		list = append(list, [2]uint64{uint64(v[0]), uint64(v[1])})
	}
	return list
}

// tokenBefore is when tokens end that were signed before idle or max was cut, for a session begun at start after so many
// cuts; room_step.lua's token_before.
func (h *roomHead) tokenBefore(start time.Duration, cut float64) (t time.Duration) {
	for i := range h.int("cuts") {
		v := h.values[len(headNames)+2*h.int("orders")+2*h.int("draws")+4*i:]
		at, idle, longest := time.Duration(v[1])*time.Microsecond, time.Duration(v[2])*time.Microsecond, time.Duration(v[3])*time.Microsecond
		if cut < v[0] {
			t = max(t, min(at+idle, start+longest))
		}
	}
	return t
}
