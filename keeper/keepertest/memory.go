package keepertest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ushergo/usher/keeper"
)

// Memory is a sink that keeps everything, with faults on demand. The zero value is ready. Safe for concurrent use.
type Memory struct {
	mu      sync.Mutex
	fences  map[string]uint64
	rows    map[string]map[int64]keeper.Message
	log     []Stored
	refused int
	fault   func(ctx context.Context, batches []keeper.Batch) error
}

// Stored is a message in the order of storing.
type Stored struct {
	Connection string
	Fence      uint64
	Seq        int64
}

var _ keeper.Sink = (*Memory)(nil)

// Fault is asked before each call: an error is the call's, and nothing is stored. nil: no fault.
func (m *Memory) Fault(f func(ctx context.Context, batches []keeper.Batch) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// Store implements keeper.Sink.
func (m *Memory) Store(ctx context.Context, batches []keeper.Batch) ([]bool, error) {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	if fault != nil {
		if err := fault(ctx, batches); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rows == nil {
		m.fences, m.rows = map[string]uint64{}, map[string]map[int64]keeper.Message{}
	}
	ok := make([]bool, len(batches))
	for i, b := range batches {
		if b.Fence < m.fences[b.Connection] {
			m.refused++
			continue
		}
		ok[i], m.fences[b.Connection] = true, b.Fence
		rows := m.rows[b.Connection]
		if rows == nil {
			rows = map[int64]keeper.Message{}
			m.rows[b.Connection] = rows
		}
		for _, msg := range b.Messages {
			if _, dup := rows[msg.Seq]; !dup {
				rows[msg.Seq] = msg
				m.log = append(m.log, Stored{b.Connection, b.Fence, msg.Seq})
			}
		}
	}
	return ok, nil
}

// Len is how many messages of a connection are there.
func (m *Memory) Len(connection string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.rows[connection])
}

// Fence is the highest of a connection.
func (m *Memory) Fence(connection string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fences[connection]
}

// Refused is how many batches had too low a fence.
func (m *Memory) Refused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused
}

// Log is every message in the order of storing.
func (m *Memory) Log() []Stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Stored(nil), m.log...)
}

// Audit says what is wrong with a connection's messages, of which 1 to last should be there, as text says.
func (m *Memory) Audit(connection string, last int64, text func(n int64) []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	rows := m.rows[connection]
	for n := int64(1); n <= last; n++ {
		switch msg, there := rows[n]; {
		case !there:
			errs = append(errs, fmt.Errorf("%s: message %d is lost", connection, n))
		case string(msg.Data) != string(text(n)):
			errs = append(errs, fmt.Errorf("%s: message %d is %q", connection, n, msg.Data))
		}
		if len(errs) > 10 {
			break
		}
	}
	if int64(len(rows)) > last {
		errs = append(errs, fmt.Errorf("%s: %d messages, and the upstream had %d", connection, len(rows), last))
	}
	var fence uint64
	for _, s := range m.log {
		if s.Connection != connection {
			continue
		}
		if s.Fence < fence {
			errs = append(errs, fmt.Errorf("%s: message %d came in under fence %d after one under %d", connection, s.Seq, s.Fence, fence))
		}
		fence = max(fence, s.Fence)
	}
	return errors.Join(errs...)
}

// Rows is everything that is stored.
func (m *Memory) Rows() (rows []Row) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.log {
		msg := m.rows[s.Connection][s.Seq]
		rows = append(rows, Row{s.Connection, s.Seq, s.Fence, msg.Binary, string(msg.Data)})
	}
	return rows
}
