package push

import (
	"sync"
	"time"
)

// door is where connections are counted before anything of theirs is read.
type door struct {
	opts   *Options
	mu     sync.Mutex
	tokens float64
	at     time.Time
	addrs  map[string]int
	n      int
}

func (d *door) init(o *Options) {
	d.opts, d.tokens, d.at, d.addrs = o, float64(o.AcceptBurst), time.Now(), map[string]int{}
}

// Accept lets a connection in before anything of it is parsed. addr is the visitor's network address; "" is not counted.
// After nil, call Attach with the same address, or Forget. Errors: ErrFull, ErrBusy, ErrAddress, ErrDraining; after is
// when to come back, with a share of chance in it.
func (h *Hub) Accept(addr string) (after time.Duration, err error) {
	d := &h.door
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.tokens = min(d.tokens+now.Sub(d.at).Seconds()*float64(d.opts.AcceptPerSecond), float64(d.opts.AcceptBurst))
	d.at = now
	switch {
	case h.draining.Load():
		return jitter(h.Window()), ErrDraining
	case d.n >= d.opts.MaxConns:
		return 15*time.Second + jitter(30*time.Second), ErrFull
	case addr != "" && d.addrs[addr] >= d.opts.MaxPerAddress:
		return 15*time.Second + jitter(30*time.Second), ErrAddress
	case d.tokens < 1:
		return time.Second + jitter(h.Window()), ErrBusy
	}
	d.tokens--
	d.n++
	if addr != "" {
		d.addrs[addr]++
	}
	return 0, nil
}

// Forget takes back an Accept that came to nothing.
func (h *Hub) Forget(addr string) {
	d := &h.door
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n--
	if addr != "" {
		if d.addrs[addr]--; d.addrs[addr] <= 0 {
			delete(d.addrs, addr)
		}
	}
}
