package gate_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/gate"
)

func Example() {
	ctx := context.Background()
	store, err := memory.OpenGates("", memory.GateOptions{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	g, err := gate.New(store, gate.Options{Permits: 20})
	if err != nil {
		panic(err)
	}
	defer g.Close()

	taken := false // the row, which a real transaction verifies and writes
	accept := func(freelancer int) error {
		return g.Do(ctx, "job:4711", func(ctx context.Context, p *gate.Permit) error {
			if taken {
				return errors.New("taken, says the database")
			}
			taken = true
			return p.Settle(ctx, fmt.Sprint("taken by ", freelancer), 30*time.Second) // after the commit
		})
	}
	fmt.Println(accept(7))
	var settled *gate.SettledError
	if err := accept(8); errors.As(err, &settled) {
		fmt.Println("without asking the database:", settled.Verdict)
	}
	// Output:
	// <nil>
	// without asking the database: taken by 7
}
