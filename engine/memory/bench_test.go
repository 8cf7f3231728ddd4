package memory_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

// BenchmarkEnter prints durable enters a second by number of callers, each of whom waits for
// the disk. bench/ has the same beside a store of the trade.
func BenchmarkEnter(b *testing.B) {
	for _, callers := range []int{1, 64, 512} {
		b.Run(fmt.Sprint(callers, "callers"), func(b *testing.B) {
			e, err := memory.Open(b.TempDir(), memory.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			c := config(1)
			c.Queue.MaxWaiting = 1 << 40
			ctx := context.Background()
			if _, err := e.Do(ctx, c.ID, &room.Command{Op: room.OpConfigure, Config: &c}); err != nil {
				b.Fatal(err)
			}
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for {
						n := next.Add(1)
						if n > int64(b.N) {
							return
						}
						var id room.ID
						binary.LittleEndian.PutUint64(id[:], uint64(n))
						id[15] = 1
						r, err := e.Do(ctx, c.ID, &room.Command{Op: room.OpEnter, NewID: id, Request: [16]byte(id)})
						if err != nil || r.Err != nil {
							b.Error(r.Err, err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "enters/s")
		})
	}
}
