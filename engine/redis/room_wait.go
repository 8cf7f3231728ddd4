package redis

import (
	"context"
	"crypto/sha1" //nolint:gosec // it is what EVALSHA names scripts by
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

// replicaWait is how long an answer waits for the replicas of RoomOptions.WaitReplicas.
const replicaWait = time.Second

var roomCallSHA = func() string {
	sum := sha1.Sum([]byte(roomCallSource))
	return hex.EncodeToString(sum[:])
}()

// exec makes one call of roomCallScript. With WaitReplicas it returns once so many replicas have what was written: WAIT
// counts what its own connection wrote, so both go by one that is nobody else's meanwhile. When too few answer, the
// outcome is unknown: it is written here, and a promotion may lose it.
func (s *Rooms) exec(ctx context.Context, key string, args []string) (rueidis.RedisResult, error) {
	if s.opts.WaitReplicas <= 0 {
		return roomCallScript.Exec(ctx, s.client, []string{key}, args), nil
	}
	c, release := s.client.Dedicate()
	defer release()
	res := c.Do(ctx, c.B().Evalsha().Sha1(roomCallSHA).Numkeys(1).Key(key).Arg(args...).Build())
	if err, ok := rueidis.IsRedisErr(res.Error()); ok && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		res = c.Do(ctx, c.B().Eval().Script(roomCallSource).Numkeys(1).Key(key).Arg(args...).Build())
	}
	if res.Error() != nil {
		return res, nil
	}
	n, err := c.Do(ctx, c.B().Wait().Numreplicas(int64(s.opts.WaitReplicas)).Timeout(replicaWait.Milliseconds()).Build()).AsInt64()
	if err != nil {
		return res, err
	}
	if n < int64(s.opts.WaitReplicas) {
		return res, fmt.Errorf("written, but %d of %d replicas have it after %v; see engine.wait_replicas, and that replicas follow", n, s.opts.WaitReplicas, replicaWait)
	}
	return res, nil
}

// settled returns once so many replicas have all that the server of a room had written before: what is read there is not
// shown until then, or somebody would be told of an admission that a promotion loses. The message is for nobody; it is
// something written, which WAIT can count.
func (s *Rooms) settled(ctx context.Context, id string) error {
	if s.opts.WaitReplicas <= 0 {
		return nil
	}
	c, release := s.client.Dedicate()
	defer release()
	if err := c.Do(ctx, c.B().Spublish().Channel(roomBase(id)+"settled").Message("").Build()).Error(); err != nil {
		return roomError(id, err, true)
	}
	n, err := c.Do(ctx, c.B().Wait().Numreplicas(int64(s.opts.WaitReplicas)).Timeout(replicaWait.Milliseconds()).Build()).AsInt64()
	if err != nil {
		return roomError(id, err, true)
	}
	if n < int64(s.opts.WaitReplicas) {
		return fmt.Errorf("%w: redis: room %s: %d of %d replicas follow; see engine.wait_replicas", room.ErrUnavailable, id, n, s.opts.WaitReplicas)
	}
	return nil
}
