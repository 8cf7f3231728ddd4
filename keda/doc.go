// Package keda is an external scaler for KEDA: a gRPC server that tells a
// cluster how many replicas the crowd in front of a room needs.
//
// A trigger names the room, and what to scale by:
//
//   - metric: waiting (default): one replica for each target waiters, 100 unless
//     the trigger says otherwise;
//   - metric: instances: as many replicas as GET /admin/v1/analysis recommends.
//     The room needs capacity.per_instance;
//   - metric: workers, without a room: as many replicas as the keeper of
//     connections should have, connections / keeper.cap, more after 2 minutes
//     and fewer after 15. See [Keeper].
//
// A scaled object is active while anybody waits in its room or is inside, so
// that scaling to zero throws nobody out. What the server cannot answer is an
// error with its mend and never a zero: KEDA then keeps what runs, or what its
// own fallback says.
package keda
