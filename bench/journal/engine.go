package main

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

// engine is the whole memory engine: an append is an enter with a request id, answered when it is durable.
type engine struct {
	*memory.Engine
	next atomic.Uint64
}

func openEngine(dir string) (store, error) {
	e, err := memory.Open(dir, memory.Options{})
	if err != nil {
		return nil, err
	}
	c := room.DefaultConfig("bench")
	c.Capacity.Active, c.Queue.MaxWaiting = 1, 1<<40
	r, err := e.Do(context.Background(), c.ID, &room.Command{Op: room.OpConfigure, Config: &c})
	if err = errors.Join(err, r.Err); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &engine{Engine: e}, nil
}

func (e *engine) append([]byte) error {
	cmd := &room.Command{Op: room.OpEnter}
	binary.LittleEndian.PutUint64(cmd.NewID[:], e.next.Add(1))
	cmd.NewID[15] = 1
	cmd.Request = [16]byte(cmd.NewID)
	r, err := e.Do(context.Background(), "bench", cmd)
	if err != nil {
		return err
	}
	return r.Err
}

func (e *engine) close() error { return e.Close() }
