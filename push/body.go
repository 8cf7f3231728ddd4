package push

import (
	"encoding/json"
	"strconv"
	"time"
)

// The bodies are the same on every transport. They are written by hand: a place is written for every visitor, every
// few seconds.

func appendRank(b []byte, r *Rank) []byte {
	b = append(b, `{"type":"rank","status":"WAITING","place":`...)
	if r.Place > 0 {
		b = strconv.AppendInt(b, r.Place, 10)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"waiting":`...)
	b = strconv.AppendInt(b, r.Waiting, 10)
	b = append(b, `,"eta":`...)
	if r.ETA == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, `{"low_s":`...)
		b = strconv.AppendInt(b, r.ETA.LowS, 10)
		b = append(b, `,"high_s":`...)
		b = strconv.AppendInt(b, r.ETA.HighS, 10)
		b = append(b, `,"basis":`...)
		b = appendString(b, r.ETA.Basis)
		b = append(b, '}')
	}
	return appendEnd(b, r.At)
}

func appendStats(b []byte, s *Stats) []byte {
	b = append(b, `{"type":"stats","waiting":`...)
	b = strconv.AppendInt(b, s.Waiting, 10)
	b = append(b, `,"active":`...)
	b = strconv.AppendInt(b, s.Active, 10)
	b = append(b, `,"room_state":`...)
	b = appendString(b, s.State)
	b = append(b, `,"message":`...)
	b = appendString(b, s.Message)
	return appendEnd(b, s.At)
}

func appendAdmission(b, admission []byte, at int64) []byte {
	b = append(b, `{"type":"admission","status":"ADMITTED","action":"REDIRECT","admission":`...)
	if len(admission) == 0 {
		admission = []byte("null")
	}
	b = append(b, admission...)
	return appendEnd(b, at)
}

func appendTimeout(b []byte, reason string, at int64) []byte {
	b = append(b, `{"type":"timeout","reason":`...)
	b = appendString(b, reason)
	return appendEnd(b, at)
}

func appendSoon(b []byte, afterMS int64) []byte {
	b = append(b, `{"type":"RECONNECT_SOON","reason":"SERVER_SHUTDOWN","after_ms":`...)
	b = strconv.AppendInt(b, afterMS, 10)
	return append(b, '}')
}

// appendEnd ends a body with its time, µs since 1970.
func appendEnd(b []byte, at int64) []byte {
	b = append(b, `,"at":"`...)
	b = time.UnixMicro(at).UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	return append(b, `"}`...)
}

// appendString writes a JSON string as encoding/json does.
func appendString(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			q, err := json.Marshal(s)
			if err != nil { // a string: cannot happen
				panic(err)
			}
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
