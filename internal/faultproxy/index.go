package faultproxy

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// shadow is the suffix of the table whose index is asked in place of the real one's.
const shadow = ".lagging"

// index makes secondary indexes lag. dynalite's never do, DynamoDB's always may. Beside each table with an index stands a
// second table of the same kind that is brought up to date late, row by row; queries of an index go there.
type index struct {
	p    *Proxy
	work chan change
	wg   sync.WaitGroup

	mu     sync.Mutex
	tables map[string][]string // with an index: their key attributes
	lag    time.Duration
	frozen bool
	held   []change // while frozen
}

type change struct {
	header http.Header
	table  string
	key    map[string]json.RawMessage
	due    time.Time
}

func newIndex(p *Proxy) *index {
	x := &index{p: p, work: make(chan change, 1<<16), tables: map[string][]string{}}
	x.wg.Go(x.run)
	return x
}

func (x *index) wait() { x.wg.Wait() }

// IndexLag lets each change reach the indexes after a random time up to d. Default 0: as soon as it can.
func (p *Proxy) IndexLag(d time.Duration) { p.index.mu.Lock(); p.index.lag = d; p.index.mu.Unlock() }

// FreezeIndex lets no change reach the indexes until ThawIndex.
func (p *Proxy) FreezeIndex() { p.index.mu.Lock(); p.index.frozen = true; p.index.mu.Unlock() }

// ThawIndex lets the changes of meanwhile reach them.
func (p *Proxy) ThawIndex() {
	x := p.index
	x.mu.Lock()
	held := x.held
	x.held, x.frozen = nil, false
	x.mu.Unlock()
	for _, c := range held {
		x.send(c)
	}
}

func (x *index) send(c change) {
	select {
	case x.work <- c:
	case <-x.p.ctx.Done():
	}
}

type fields struct {
	TableName              string
	IndexName              string
	KeySchema              []struct{ AttributeName string }
	GlobalSecondaryIndexes json.RawMessage
	Key, Item              map[string]json.RawMessage
}

// redirect sends queries of an index to the lagging table.
func (x *index) redirect(op string, body []byte) []byte {
	if op != "Query" && op != "Scan" {
		return body
	}
	var f fields
	if json.Unmarshal(body, &f) != nil || f.IndexName == "" {
		return body
	}
	return renamed(body, f.TableName+shadow)
}

func renamed(body []byte, table string) []byte {
	var all map[string]json.RawMessage
	if json.Unmarshal(body, &all) != nil {
		return body
	}
	all["TableName"], _ = json.Marshal(table)
	out, _ := json.Marshal(all)
	return out
}

// wrote notes what a request that was done has changed.
func (x *index) wrote(req *http.Request, op string, body []byte, status int) {
	var f fields
	if status != http.StatusOK || json.Unmarshal(body, &f) != nil || strings.HasSuffix(f.TableName, shadow) {
		return
	}
	switch op {
	case "CreateTable":
		if f.GlobalSecondaryIndexes == nil {
			return
		}
		if _, err := x.p.call(req.Header, op, renamed(body, f.TableName+shadow)); err != nil {
			return // there is one
		}
		var keys []string
		for _, k := range f.KeySchema {
			keys = append(keys, k.AttributeName)
		}
		x.mu.Lock()
		x.tables[f.TableName] = keys
		x.mu.Unlock()
	case "PutItem", "UpdateItem", "DeleteItem":
		x.mu.Lock()
		keys := x.tables[f.TableName]
		c := change{req.Header, f.TableName, f.Key, time.Now().Add(rand.N(x.lag + 1))}
		if keys == nil {
			x.mu.Unlock()
			return
		}
		if c.key == nil {
			c.key = maps.Clone(f.Item)
			maps.DeleteFunc(c.key, func(k string, _ json.RawMessage) bool { return k != keys[0] && k != keys[len(keys)-1] })
		}
		frozen := x.frozen
		if frozen {
			x.held = append(x.held, c)
		}
		x.mu.Unlock()
		if !frozen {
			x.send(c)
		}
	}
}

// run copies rows, one at a time and so never an older one over a newer. Each copy is of the row as it is by then: what
// is skipped was late anyway.
func (x *index) run() {
	for {
		var c change
		select {
		case <-x.p.ctx.Done():
			return
		case c = <-x.work:
		}
		if d := time.Until(c.due); d > 0 {
			select {
			case <-x.p.ctx.Done():
				return
			case <-time.After(d):
			}
		}
		x.copy(c)
	}
}

func (x *index) copy(c change) {
	ask, _ := json.Marshal(map[string]any{"TableName": c.table, "Key": c.key, "ConsistentRead": true})
	answer, err := x.p.call(c.header, "GetItem", ask)
	if err != nil {
		return // the table is gone, or the proxy closes
	}
	var got struct{ Item map[string]json.RawMessage }
	if json.Unmarshal(answer, &got) != nil {
		return
	}
	if got.Item == nil {
		del, _ := json.Marshal(map[string]any{"TableName": c.table + shadow, "Key": c.key})
		_, _ = x.p.call(c.header, "DeleteItem", del)
		return
	}
	put, _ := json.Marshal(map[string]any{"TableName": c.table + shadow, "Item": got.Item})
	_, _ = x.p.call(c.header, "PutItem", put)
}
