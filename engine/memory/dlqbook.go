package memory

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/relay"
)

// dlqPage is one change of the dead letters on the disk. A snapshot is one for each letter.
type dlqPage struct {
	Put     *relay.Letter `json:"put,omitempty"`
	Relay   string        `json:"relay,omitempty"`
	Dropped []string      `json:"dropped,omitempty"`
	Seq     uint64        `json:"seq,omitempty"` // of the newest letter ever; in snapshots
}

// append writes a page. mu is held.
func (d *DeadLetters) append(p *dlqPage) (journal.Pos, error) {
	rec, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	return d.journal.Append(rec)
}

func (d *DeadLetters) restore() error {
	pos, r, ok, err := d.journal.LatestSnapshot()
	if err != nil {
		return err
	}
	if ok {
		err := d.load(r)
		if cerr := r.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
		d.snapshot = pos
	} else if f := d.journal.Floor(); f != 0 {
		return fmt.Errorf("the log begins at %d and there is no snapshot of what was before: restore the folder from a copy, or move it away to begin anew", f)
	}
	_, err = d.journal.Replay(d.snapshot, func(_ journal.Pos, rec []byte) error { return d.turn(rec) })
	return err
}

func (d *DeadLetters) load(r io.Reader) error {
	dec := json.NewDecoder(bufio.NewReader(r))
	for {
		var rec json.RawMessage
		if err := dec.Decode(&rec); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := d.turn(rec); err != nil {
			return err
		}
	}
}

func (d *DeadLetters) turn(rec []byte) error {
	var p dlqPage
	if err := json.Unmarshal(rec, &p); err != nil {
		return fmt.Errorf("a record that is none of ours: %w", err)
	}
	d.seq = max(d.seq, p.Seq)
	if p.Put != nil {
		d.seq = max(d.seq, p.Put.Seq)
		d.of(p.Put.Relay).put(p.Put)
	}
	for _, event := range p.Dropped {
		d.of(p.Relay).drop(event)
	}
	return nil
}

const dlqSnapshot = 16 << 20 // bytes of log between two snapshots, or the last snapshot's size

// keep makes snapshots as the log grows.
func (d *DeadLetters) keep() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
		}
		if int64(d.journal.Durable()-d.snapshot) < max(dlqSnapshot, d.size) {
			continue
		}
		if err := d.snap(); err != nil && d.ctx.Err() == nil {
			d.log.Error("the dead letters' log was not tidied; it grows until it is", "err", err)
		}
	}
}

func (d *DeadLetters) snap() error {
	d.mu.Lock()
	pages := []dlqPage{{Seq: d.seq}}
	var size int64
	for _, r := range d.relays {
		size += r.bytes
		for _, l := range r.byID {
			copied := *l
			pages = append(pages, dlqPage{Put: &copied})
		}
	}
	pos := d.journal.End()
	d.mu.Unlock()
	slices.SortFunc(pages[1:], func(a, b dlqPage) int { return int(int64(a.Put.Seq - b.Put.Seq)) }) // as they are put in again
	if err := d.journal.Sync(d.ctx, pos); err != nil {
		return err
	}
	err := d.journal.Snapshot(d.ctx, pos, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		for i := range pages {
			if err := enc.Encode(&pages[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.snapshot, d.size = pos, size
	_, err = d.journal.Trim(journal.Keep{From: pos})
	return err
}

// Close frees the folder.
func (d *DeadLetters) Close() error {
	d.stop()
	d.wg.Wait()
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if closed || d.journal == nil {
		return nil
	}
	if err := d.journal.Close(); !errors.Is(err, journal.ErrClosed) {
		return err
	}
	return nil
}
