package push

import (
	"bytes"
	"sync/atomic"
	"time"
)

// Topic is what a connection can subscribe to.
type Topic uint8

const (
	TopicAdmission Topic = iota
	TopicTimeout
	TopicRank
	TopicStats
	topics
)

var topicNames = [topics]string{"admission", "timeout", "rank", "stats"}

func (t Topic) String() string { return topicNames[t] }

// ParseTopic reads what String writes.
func ParseTopic(s string) (Topic, bool) {
	for t, name := range topicNames {
		if s == name {
			return Topic(t), true
		}
	}
	return 0, false
}

// Message is one body to one topic. It is never changed once it has been handed out.
type Message struct {
	Topic  Topic
	Of     string // last part of the destination: the ticket's id, for stats the room's
	Cursor Cursor
	Body   []byte
	Reset  bool          // what the client knew cannot be continued: forget it, everything now true follows
	Retry  time.Duration // over 0: come back then; the connection closes

	variants [4]atomic.Pointer[variant]
}

// variant is a message in one form: the same for all connections with that codec and subscription id.
type variant struct {
	codec Codec
	sub   string
	bytes []byte
}

// Codec writes what a transport carries. It is a comparable value without state.
type Codec interface {
	// Name is the transport's, for figures: ws, sse, poll.
	Name() string
	// AppendMessage appends m as it goes to the subscription sub.
	AppendMessage(b []byte, m *Message, sub string) []byte
	// AppendBeat appends what keeps a quiet connection open.
	AppendBeat(b []byte) []byte
	// AppendPong appends the answer to a ping.
	AppendPong(b, payload []byte) []byte
	// AppendClose appends the last words. after is when to come back; 0: nothing is said of it.
	AppendClose(b []byte, code Code, text string, after time.Duration) []byte
	// Topical says whether messages name the topic they belong to: if not, what concerns all topics is said once.
	Topical() bool
}

// appendShared appends a message that many get, encoding each form of it once. Subscription ids are chosen by
// clients, so what is kept is bounded; further forms are encoded each time.
func (m *Message) appendShared(b []byte, codec Codec, sub string) []byte {
	var made []byte
	for i := range m.variants {
		v := m.variants[i].Load()
		if v == nil {
			if made == nil {
				made = codec.AppendMessage(nil, m, sub)
			}
			if m.variants[i].CompareAndSwap(nil, &variant{codec, sub, bytes.Clone(made)}) {
				return append(b, made...)
			}
			v = m.variants[i].Load()
		}
		if v.codec == codec && v.sub == sub {
			return append(b, v.bytes...)
		}
	}
	if made == nil {
		return codec.AppendMessage(b, m, sub)
	}
	return append(b, made...)
}
