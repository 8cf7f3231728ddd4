package main

import (
	"runtime"
	"sync"
)

// A gatherer turns concurrent appends into groups for stores that do not do so
// themselves: one goroutine commits whatever came while it committed the last group.
type gatherer struct {
	commit func(recs [][]byte) error

	mu     sync.Mutex
	wake   *sync.Cond
	next   *group
	closed bool
	idle   chan struct{}
}

type group struct {
	buf  []byte
	recs [][]byte
	done chan struct{}
	err  error
}

// A group is bounded as a careful user would bound it, so that nobody waits for a
// transaction of a million rows.
const maxGroup = 1024

func gather(commit func([][]byte) error) *gatherer {
	g := &gatherer{commit: commit, next: newGroup(), idle: make(chan struct{})}
	g.wake = sync.NewCond(&g.mu)
	go g.run()
	return g
}

func newGroup() *group { return &group{done: make(chan struct{})} }

func (g *gatherer) append(rec []byte) error {
	g.mu.Lock()
	grp := g.next
	from := len(grp.buf)
	grp.buf = append(grp.buf, rec...)
	grp.recs = append(grp.recs, grp.buf[from:len(grp.buf):len(grp.buf)])
	if len(grp.recs) == 1 {
		g.wake.Signal()
	}
	g.mu.Unlock()
	<-grp.done
	return grp.err
}

func (g *gatherer) run() {
	defer close(g.idle)
	for {
		g.mu.Lock()
		for len(g.next.recs) == 0 && !g.closed {
			g.wake.Wait()
		}
		grp := g.next
		g.next = newGroup()
		closed := g.closed
		g.mu.Unlock()
		for recs := grp.recs; len(recs) > 0 && grp.err == nil; {
			n := min(len(recs), maxGroup)
			grp.err = g.commit(recs[:n])
			recs = recs[n:]
		}
		close(grp.done)
		if closed {
			return
		}
		runtime.Gosched() // as the journal does: those released join the next group
	}
}

func (g *gatherer) stop() {
	g.mu.Lock()
	g.closed = true
	g.wake.Signal()
	g.mu.Unlock()
	<-g.idle
}
