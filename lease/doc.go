// Package lease says who owns a long-lived thing: a connection, a shard, a sink's cursor, a lock. Many workers share the
// resources of one store; each resource is one worker's, and a dead worker's are soon the others'.
//
//	err := lease.Run(ctx, store, func(ctx context.Context, r lease.Resource) error {
//		// r is this worker's until ctx ends. r.ID, r.URL and r.Spec say what it is, r.Cursor where to go on.
//		for msg := range read(ctx, r.URL, r.Cursor) {
//			if err := save(ctx, msg, r.Fence); err != nil { // refuse a smaller fence than was seen
//				return err // run again after a pause
//			}
//			r.SetCursor(msg.Seq) // written once a second, together with others', under the fence
//		}
//		return nil // finished: nobody owns it any more
//	}, lease.Options{Cap: 700})
//
// Resources are made and changed through the store: Put, Delete, Get, List; their desired state is Started or Stopped.
// Stores are engine/memory.OpenLeases, engine/redis.NewLeases and engine/dynamodb.NewLeases. For figures, and to wake a worker
// when told of a change, use New, Worker.Stats, Worker.Wake and Worker.Close instead of Run. For one named thing use
// Worker.Acquire; examples/lock and examples/leader are twenty lines each.
//
// # Promises
//
//   - One beat per worker, whatever it holds. A resource's row is written when its owner changes, not to keep it.
//   - A function's context ends before anyone else may begin: the worker trusts its lease until the start of its last
//     good beat + Lease − Margin. The cause says why. (Not so where a resource is deleted and made again under its owner: see
//     Store.Delete.)
//   - A crashed worker's resources are taken by the others one lease and at most a few reads after its last beat.
//   - What a stopped process cannot do for itself, the fence does: each new owner's is greater, whatever was released,
//     deleted or restarted meanwhile, and a cursor is only written under the fence of the row.
//   - No clock is compared with another machine's. Wall clocks may be wrong and step. A store that was away counts
//     against nobody's lease.
//   - A graceful end gives everything back at once, whatever its number; one function that hangs keeps only its own.
//   - Each worker holds at most ceil(resources / workers) in the long run, and never more than its cap.
//
// # A resource's life
//
//	        Take: fence + 1                       Release, or its owner left or is dead
//	nobody's ───────────────> owned, function runs ──────────────────────> nobody's
//	                            │ error: pause, again   │ nil: stopped
//
// # A worker's life
//
//	Join ──> living ── Beat, Beat … ──> Leave: dead
//	            └─ no beat for a lease, seen by another: Mark: dead
//
// A generation that is dead never lives again: its next beat is refused, and it joins anew. Take-over needs three
// conditional writes and no transaction: see the beat unchanged for one lease, Mark if it is still that beat, Take each row if
// it is still that owner's. A row whose generation is dead is unowned, whenever it was written.
//
// # What it is not
//
// A lease alone excludes nobody: a process may be stopped between its last look at ctx and its write, and while a
// machine sleeps its clock may stand still. Give the fence to whatever is written to, and let that refuse smaller ones.
//
// # Parts
//
//	machine.go   what each method of Store decides: pure     view.go      what a worker makes of the others' rows: pure
//	store.go     what engines implement                      worker.go    Worker, Run: beats and trust
//	take.go      take-over, fair share, desired state        resource.go  Resource, functions, cursors
//	close.go     graceful end                                lock.go      Acquire
package lease
