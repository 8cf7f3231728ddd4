package keepertest_test

import (
	"testing"

	"github.com/ushergo/usher/keeper/keepertest"
)

func TestMemory(t *testing.T) {
	keepertest.Run(t, func(*testing.T) keepertest.Fixture {
		m := &keepertest.Memory{}
		return keepertest.Fixture{Sink: m, Rows: func(*testing.T) []keepertest.Row { return m.Rows() }}
	})
}
