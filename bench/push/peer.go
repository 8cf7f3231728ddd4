package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/centrifugal/centrifuge"
	"github.com/gorilla/websocket"
)

// body is a frame as long as usher's stats.
func body(round int) []byte {
	return fmt.Appendf(nil, `{"type":"stats","waiting":100000,"active":600,"room_state":"open","message":"round %d","at":"2026-01-02T03:04:05.678Z"}`, round)
}

// gorilla is the hub that everybody writes: a map of connections under a lock.
type gorilla struct {
	chat  bool
	up    websocket.Upgrader
	mu    sync.Mutex
	peers map[*websocket.Conn]chan []byte // nil channels: written to by the hub
}

func newGorilla(chat bool) *gorilla {
	g := &gorilla{chat: chat, peers: map[*websocket.Conn]chan []byte{}}
	g.up.CheckOrigin = func(*http.Request) bool { return true }
	if !chat {
		g.up.ReadBufferSize, g.up.WriteBufferSize, g.up.WriteBufferPool = 512, 512, &sync.Pool{}
	}
	return g
}

func (g *gorilla) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := g.up.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	var out chan []byte
	if g.chat {
		out = make(chan []byte, 256)
		go func() {
			for b := range out {
				_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
				if c.WriteMessage(websocket.TextMessage, b) != nil {
					return
				}
			}
		}()
	}
	g.mu.Lock()
	g.peers[c] = out
	g.mu.Unlock()
	read := func() {
		defer func() {
			g.mu.Lock()
			delete(g.peers, c)
			g.mu.Unlock()
			c.Close()
		}()
		for {
			if _, _, err := c.ReadMessage(); err != nil {
				return
			}
		}
	}
	if g.chat {
		read()
	} else {
		go read() // a fresh, small stack
	}
}

func (g *gorilla) broadcast(round int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pm, err := websocket.NewPreparedMessage(websocket.TextMessage, body(round))
	if err != nil {
		panic(err)
	}
	for c, out := range g.peers {
		if out != nil {
			out <- body(round)
			continue
		}
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_ = c.WritePreparedMessage(pm)
	}
}

func (g *gorilla) conns() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.peers)
}

// centri is a node with one channel that everybody is subscribed to.
type centri struct {
	http.Handler
	node *centrifuge.Node
}

func newCentrifuge(tuned bool) (*centri, error) {
	node, err := centrifuge.New(centrifuge.Config{})
	if err != nil {
		return nil, err
	}
	node.OnConnecting(func(context.Context, centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
		r := centrifuge.ConnectReply{
			Credentials:   &centrifuge.Credentials{UserID: "x"},
			Subscriptions: map[string]centrifuge.SubscribeOptions{"stats": {}},
		}
		if tuned {
			r.WriteDelay, r.WriteWithTimer = time.Millisecond, true // one goroutine a connection
		}
		return r, nil
	})
	if err := node.Run(); err != nil {
		return nil, err
	}
	cfg := centrifuge.WebsocketConfig{CheckOrigin: func(*http.Request) bool { return true }}
	if tuned {
		cfg.ReadBufferSize, cfg.UseWriteBufferPool = 512, true
	}
	return &centri{centrifuge.NewWebsocketHandler(node, cfg), node}, nil
}

func (c *centri) broadcast(round int) { _, _ = c.node.Publish("stats", body(round)) }
func (c *centri) conns() int          { return c.node.Hub().NumClients() }
