package memory_test

import (
	"sync"
	"testing"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/gate"
	"github.com/ushergo/usher/gate/gatetest"
)

func TestGateConformance(t *testing.T) {
	var mu sync.Mutex
	dirs := map[gate.Store]string{}
	openIn := func(t *testing.T, dir string) gate.Store {
		s, err := memory.OpenGates(dir, memory.GateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		mu.Lock()
		defer mu.Unlock()
		dirs[s] = dir
		return s
	}
	t.Run("durable", func(t *testing.T) {
		gatetest.Run(t, func(t *testing.T) gate.Store { return openIn(t, t.TempDir()) }, gatetest.Abilities{
			Restart: func(t *testing.T, s gate.Store) gate.Store {
				if err := s.(*memory.Gates).Close(); err != nil {
					t.Fatal(err)
				}
				mu.Lock()
				dir := dirs[s]
				mu.Unlock()
				return openIn(t, dir)
			},
		})
	})
	t.Run("nowhere", func(t *testing.T) {
		gatetest.Run(t, func(t *testing.T) gate.Store { return openIn(t, "") }, gatetest.Abilities{})
	})
}
