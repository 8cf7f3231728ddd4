// Package faultdisk is a disk in memory that does what real ones do on a bad day.
//
// It keeps for each file what readers see (the page cache) apart from what would be
// there after the power failed (the platter), by sectors of 512 bytes, and for the
// folder the names readers see apart from those that were made durable.
//
//   - Writes change the cache alone; Sync carries the dirty sectors over.
//   - A Sync that fails writes some of the dirty sectors and forgets the others, as
//     Linux does: readers go on seeing them, later Syncs succeed without them.
//   - After a power loss each dirty sector is old, new, torn at any byte, or garbage
//     where nothing was; the file has its old size, its new one or one in between; of the
//     changes of names since the last SyncDir any may be missing, not only the latest.
//   - After a kill the cache is kept, whatever the platter holds.
//   - A full disk writes what fits and answers ENOSPC.
//
// Faults are asked for by a function that sees every operation before it happens.
package faultdisk
