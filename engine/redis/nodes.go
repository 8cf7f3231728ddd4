package redis

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Nodes is what one node knows of all nodes that share a Redis: who lives, who is draining, which build each runs. Every
// node beats twice a second; one that has not for NodeLease is dead to the others, by the server's clock. Safe for
// concurrent use.
//
// Nodes that disagree for a moment about who lives do no harm: what one node alone should do (Leads) may be done twice.
//
// Layout, in one slot:
//
//	usher:{nodes}          hash: ":v" 1; id → "nonce beat-µs JSON"
//	usher:{nodes}:drain    hash: id → nonce of the process that is to drain
type Nodes struct {
	client rueidis.Client
	self   func() Node
	onAsk  func()
	log    *slog.Logger
	id     string
	nonce  string

	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	list  []Node    // of the last answer
	good  time.Time // when the last answered beat began
	since time.Time // from when on beats have been answered without a pause
	err   error     // of the last beat; nil: it was answered
	asked bool
}

// Node is one running usher as the others see it.
type Node struct {
	ID        string    `json:"id"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Draining  bool      `json:"draining"`
	Ready     bool      `json:"ready"`
	Streams   int       `json:"streams"`
	Admin     string    `json:"admin,omitempty"`

	Self bool          `json:"-"`
	Age  time.Duration `json:"-"` // since its last beat, by the server's clock
}

// Alive says whether the node was heard within its lease.
func (n *Node) Alive() bool { return n.Age < NodeLease }

const (
	// NodeLease is how long a node counts as living after its last beat.
	NodeLease = 2 * time.Second
	nodeBeat  = 500 * time.Millisecond
	// nodeMemory is how long a dead node is still listed.
	nodeMemory = 10 * time.Minute
)

// ErrNodeTaken: another living process beats under this id.
var ErrNodeTaken = errors.New("redis: another living node has this id")

// NodesOptions of JoinNodes. Self is required.
type NodesOptions struct {
	// Self says what the others are told, ID included; it is asked at each beat and must not block.
	Self func() Node
	// OnDrain is called once when another node's admin API asks this one to drain.
	OnDrain func()
	Logger  *slog.Logger // default: discards
}

//go:embed nodes_beat.lua
var nodesSource string

var nodesScript = rueidis.NewLuaScript(nodesSource)

var nodesKeys = []string{"usher:{nodes}", "usher:{nodes}:drain"}

// JoinNodes makes this node known and keeps it so until Leave. An id that a process held which was killed is free after
// NodeLease, for which it waits; one that is held goes on to be, and ErrNodeTaken is returned. The client stays the
// caller's to close. ctx bounds the joining alone.
func JoinNodes(ctx context.Context, client rueidis.Client, opts NodesOptions) (*Nodes, error) {
	n := &Nodes{client: client, self: opts.Self, onAsk: opts.OnDrain, log: opts.Logger, id: opts.Self().ID, nonce: rand.Text(), done: make(chan struct{})}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	for end := time.Now().Add(2 * NodeLease); ; {
		err := n.beat(ctx, "join")
		if err == nil {
			break
		}
		if !errors.Is(err, ErrNodeTaken) || time.Now().After(end) {
			if errors.Is(err, ErrNodeTaken) {
				err = fmt.Errorf("node.id: %q is the name of another node that lives; give each a name of its own, or none: %w", n.id, err)
			}
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(nodeBeat / 2):
		}
	}
	background, stop := context.WithCancel(context.Background())
	n.stop = stop
	go n.keep(background)
	return n, nil
}

// Leave takes this node off the list, so that nobody waits for its lease to end.
func (n *Nodes) Leave(ctx context.Context) error {
	n.stop()
	<-n.done
	_, err := n.call(ctx, n.id, "", "leave")
	return err
}

func (n *Nodes) keep(ctx context.Context) {
	defer close(n.done)
	tick := time.NewTicker(nodeBeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		call, cancel := context.WithTimeout(ctx, NodeLease)
		err := n.beat(call, "beat")
		cancel()
		if ctx.Err() != nil {
			return
		}
		n.note(err)
	}
}

// note logs that beats began to fail, or were answered again.
func (n *Nodes) note(err error) {
	n.mu.Lock()
	before := n.err
	n.err = err
	n.mu.Unlock()
	switch {
	case err != nil && before == nil:
		n.log.Warn("the other nodes do not hear this one", "node", n.id, "err", err)
	case err == nil && before != nil:
		n.log.Info("the other nodes hear this one again", "node", n.id)
	}
}

func (n *Nodes) beat(ctx context.Context, op string) error {
	began := time.Now()
	self := n.self()
	doc, err := json.Marshal(self)
	if err != nil {
		return err
	}
	r, err := n.call(ctx, n.id, string(doc), op)
	if err != nil {
		return err
	}
	if r.str(1) == "1" {
		return ErrNodeTaken
	}
	list := n.read(r)
	n.mu.Lock()
	if began.Sub(n.good) > NodeLease { // the others may have been silent for as long as we were, by the same cause
		n.since = began
	}
	n.list, n.good = list, began
	ask := r.str(2) == "1" && !n.asked
	n.asked = n.asked || ask
	n.mu.Unlock()
	if ask && n.onAsk != nil {
		n.onAsk()
	}
	return nil
}

func (n *Nodes) read(r flightReply) []Node {
	var list []Node
	for i := 3; i+2 < len(r); i += 3 {
		var node Node
		if json.Unmarshal([]byte(r.str(i+2)), &node) != nil {
			continue // a later version's, which says so by its layout
		}
		node.ID, node.Age = r.str(i), time.Duration(r.num(i+1))*time.Microsecond
		node.Self = node.ID == n.id
		list = append(list, node)
	}
	slices.SortFunc(list, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
	return list
}

func (n *Nodes) call(ctx context.Context, id, doc, op string) (flightReply, error) {
	r, err := nodesScript.Exec(ctx, n.client, nodesKeys, []string{id, n.nonce, doc,
		strconv.FormatInt(NodeLease.Microseconds(), 10), strconv.FormatInt(nodeMemory.Microseconds(), 10), op}).AsStrSlice()
	if err != nil {
		if _, text, ok := strings.Cut(err.Error(), "USHERLAYOUT "); ok {
			return nil, errors.New("redis: " + text)
		}
		return nil, fmt.Errorf("redis: nodes: %w", err)
	}
	return r, nil
}

// List asks for the nodes, those that died in the last ten minutes included, sorted by id.
func (n *Nodes) List(ctx context.Context) ([]Node, error) {
	r, err := n.call(ctx, n.id, "", "list")
	if err != nil {
		return nil, err
	}
	return n.read(r), nil
}

// Drain asks a node to drain; it hears of it with its next beat. False: there is no node of that name.
func (n *Nodes) Drain(ctx context.Context, id string) (bool, error) {
	r, err := n.call(ctx, id, "", "drain")
	return r.str(2) == "1", err
}

// Count is the number of nodes that live and do not drain. It is not known while this node is not heard, nor until the
// others had time to be heard after that; see package instances for what then counts.
func (n *Nodes) Count(context.Context) (int64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if silent := time.Since(n.good); silent > NodeLease {
		return 0, fmt.Errorf("nodes cannot be counted: Redis has not answered for %v (%w)", silent.Round(time.Second), n.err)
	}
	if time.Since(n.since) < NodeLease {
		return 0, errors.New("nodes cannot be counted yet: Redis has just answered again, and others may not have been heard")
	}
	return int64(len(n.living())), nil
}

// living are the nodes that do work: heard within their lease, and staying. Called with mu held.
func (n *Nodes) living() []string {
	passed := time.Since(n.good)
	var all, staying []string
	for i := range n.list {
		node := &n.list[i]
		if node.Age+passed >= NodeLease && !node.Self {
			continue
		}
		all = append(all, node.ID)
		if !node.Draining {
			staying = append(staying, node.ID)
		}
	}
	if len(staying) == 0 {
		return all
	}
	return staying
}

// Leads says whether, of all living nodes, this is the one that does for a room what one alone needs to do. Each room has
// one by rendezvous hashing, so that a node's rooms spread over the others when it dies, and others' stay where they are.
// A node that is not heard leads nothing.
func (n *Nodes) Leads(room string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.good) > NodeLease {
		return false
	}
	var best string
	var most uint64
	for _, id := range n.living() {
		h := fnv.New64a()
		_, _ = h.Write([]byte(id + "\x00" + room))
		if w := mix(h.Sum64()); best == "" || w > most {
			best, most = id, w
		}
	}
	return best == n.id
}

// Owns is Leads for what harms nothing when two do it, and much when nobody does: a node that is not heard owns too.
func (n *Nodes) Owns(room string) bool {
	n.mu.Lock()
	heard := time.Since(n.good) <= NodeLease
	n.mu.Unlock()
	return !heard || n.Leads(room)
}

// mix spreads what FNV leaves close together (the finaliser of SplitMix64, Steele and others 2014).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
