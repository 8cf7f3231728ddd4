package main

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

func openDB(dir string) (*pebble.DB, error) {
	return pebble.Open(dir, &pebble.Options{Logger: quiet{}})
}

// pebbleSet leaves the grouping of commits to Pebble, which does it well.
type pebbleSet struct {
	db   *pebble.DB
	next atomic.Uint64
}

func openPebbleSet(dir string) (store, error) {
	db, err := openDB(dir)
	if err != nil {
		return nil, err
	}
	return &pebbleSet{db: db}, nil
}

func (s *pebbleSet) append(rec []byte) error {
	var key [8]byte
	binary.BigEndian.PutUint64(key[:], s.next.Add(1))
	return s.db.Set(key[:], rec, pebble.Sync)
}

func (s *pebbleSet) close() error { return s.db.Close() }

type pebbleBatch struct {
	*gatherer
	db   *pebble.DB
	next uint64
}

func openPebbleBatch(dir string) (store, error) {
	db, err := openDB(dir)
	if err != nil {
		return nil, err
	}
	s := &pebbleBatch{db: db}
	s.gatherer = gather(func(recs [][]byte) error {
		b := db.NewBatch()
		defer b.Close()
		var key [8]byte
		for _, rec := range recs {
			s.next++
			binary.BigEndian.PutUint64(key[:], s.next)
			if err := b.Set(key[:], rec, nil); err != nil {
				return err
			}
		}
		return b.Commit(pebble.Sync)
	})
	return s, nil
}

func (s *pebbleBatch) close() error {
	s.stop()
	return s.db.Close()
}
