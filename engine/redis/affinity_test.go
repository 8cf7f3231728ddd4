package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/affinitytest"
	"github.com/ushergo/usher/engine/redis"
)

func TestDirectory(t *testing.T) {
	s := newFlightServer(t)
	c := s.client()
	affinitytest.TestStore(t, func(t *testing.T) affinitytest.Fixture {
		flush := func() {
			if err := c.Do(t.Context(), c.B().Flushall().Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		flush()
		return affinitytest.Fixture{Store: redis.NewDirectory(c), Advance: time.Sleep, Forget: flush}
	})
}

func TestDirectoryRefusesWhatIsNotItsOwn(t *testing.T) {
	c := newFlightServer(t).client()
	d := redis.NewDirectory(c)
	claim := affinity.Claim{Space: "s", Key: "k", Owner: affinity.Identity{Instance: "i", Epoch: 1}, Token: "t", Build: time.Minute}
	part := fmt.Sprintf("usher:affinity:{s/%d}", affinity.ShardOf("k"))
	ask := func() error { _, err := d.Claim(t.Context(), claim); return err }
	for key, value := range map[string][]string{
		part:        {"HSET", "v", "1"},
		part + ":k": {"SET", "a string"},
	} {
		args := append([]string{key}, value[1:]...)
		if err := c.Do(t.Context(), c.B().Arbitrary(value[0]).Keys(args[0]).Args(args[1:]...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		if err := ask(); !errors.Is(err, affinity.ErrForeign) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v", key, err)
		}
		if n, _ := c.Do(t.Context(), c.B().Exists().Key(key).Build()).AsInt64(); n != 1 {
			t.Errorf("%s was deleted", key)
		}
		c.Do(t.Context(), c.B().Del().Key(key).Build())
	}
	c.Do(t.Context(), c.B().Hset().Key(part+":k").FieldValue().FieldValue("v", "2").Build())
	if err := ask(); !errors.Is(err, affinity.ErrForeign) {
		t.Errorf("got %v", err)
	}
}
