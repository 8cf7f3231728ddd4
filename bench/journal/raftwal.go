package main

import (
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

type raftWAL struct {
	*gatherer
	wal  *wal.WAL
	next uint64
}

func openRaftWAL(dir string, perRecord bool) (store, error) {
	w, err := wal.Open(dir, wal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		return nil, err
	}
	s := &raftWAL{wal: w, next: 1}
	s.gatherer = gather(func(recs [][]byte) error {
		if !perRecord {
			var all []byte
			for _, rec := range recs {
				all = append(all, rec...)
			}
			recs = [][]byte{all}
		}
		logs := make([]*raft.Log, len(recs))
		for i, rec := range recs {
			logs[i] = &raft.Log{Index: s.next, Data: rec}
			s.next++
		}
		return w.StoreLogs(logs)
	})
	return s, nil
}

func openRaftWALGroup(dir string) (store, error)  { return openRaftWAL(dir, false) }
func openRaftWALRecord(dir string) (store, error) { return openRaftWAL(dir, true) }

func (s *raftWAL) close() error {
	s.stop()
	return s.wal.Close()
}
