package memory_test

import (
	"testing"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/lease/leasetest"
)

func openLeases(t *testing.T, dir string, opts memory.LeaseOptions) *memory.Leases {
	t.Helper()
	s, err := memory.OpenLeases(dir, "test", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestLeases(t *testing.T) {
	leasetest.TestStore(t, func(t *testing.T) leasetest.Fixture {
		dir := t.TempDir()
		s := openLeases(t, dir, memory.LeaseOptions{})
		return leasetest.Fixture{Store: s, Restart: func(t *testing.T) lease.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openLeases(t, dir, memory.LeaseOptions{})
			return s
		}}
	})
}
