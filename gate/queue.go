package gate

import "bytes"

// queue is a heap of grants by a time, four children to a parent and the times beside each other, so that a long one costs
// few cache misses. Ties go by id, as in a Redis sorted set.
type queue struct {
	list []entry
	by   int // which of grant.at it keeps
}

type entry struct {
	key   int64
	grant *grant
}

func (e entry) before(f entry) bool {
	if e.key != f.key {
		return e.key < f.key
	}
	return bytes.Compare(e.grant.id[:], f.grant.id[:]) < 0
}

func (q *queue) put(i int, e entry) {
	q.list[i] = e
	e.grant.at[q.by] = i
}

func (q *queue) push(g *grant, key int64) {
	q.list = append(q.list, entry{})
	q.up(len(q.list)-1, entry{key, g})
}

func (q *queue) remove(g *grant) {
	i, last := g.at[q.by], len(q.list)-1
	e := q.list[last]
	q.list[last] = entry{}
	q.list = q.list[:last]
	g.at[q.by] = -1
	if i < last {
		q.settle(i, e)
	}
}

func (q *queue) move(g *grant, key int64) { q.settle(g.at[q.by], entry{key, g}) }

// settle puts e at i or wherever it belongs from there.
func (q *queue) settle(i int, e entry) {
	if i > 0 && e.before(q.list[(i-1)/4]) {
		q.up(i, e)
		return
	}
	q.down(i, e)
}

func (q *queue) up(i int, e entry) {
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(q.list[parent]) {
			break
		}
		q.put(i, q.list[parent])
		i = parent
	}
	q.put(i, e)
}

func (q *queue) down(i int, e entry) {
	for {
		child := 4*i + 1
		if child >= len(q.list) {
			break
		}
		for j := child + 1; j < min(4*i+5, len(q.list)); j++ {
			if q.list[j].before(q.list[child]) {
				child = j
			}
		}
		if !q.list[child].before(e) {
			break
		}
		q.put(i, q.list[child])
		i = child
	}
	q.put(i, e)
}
