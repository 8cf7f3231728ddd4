package memory_test

import (
	"sync"
	"testing"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

func TestConformance(t *testing.T) {
	for name, opts := range map[string]memory.Options{
		"durable": {},
		"churn":   {SegmentBytes: 4 << 10, SnapshotBytes: 8 << 10}, // snapshots and trims all the time
		"nosync":  {NoSync: true},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			dirs := map[room.Store]string{}
			openIn := func(t *testing.T, dir string) room.Store {
				e, err := memory.Open(dir, opts)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = e.Close() })
				mu.Lock()
				defer mu.Unlock()
				dirs[e] = dir
				return e
			}
			roomtest.Run(t, func(t *testing.T) room.Store { return openIn(t, t.TempDir()) }, roomtest.Abilities{
				Sync: true,
				Restart: func(t *testing.T, s room.Store) room.Store {
					if err := s.(*memory.Engine).Close(); err != nil {
						t.Fatal(err)
					}
					mu.Lock()
					dir := dirs[s]
					mu.Unlock()
					return openIn(t, dir)
				},
			})
		})
	}
}
