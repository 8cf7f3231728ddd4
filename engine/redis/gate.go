package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/gate"
)

// Gates keeps gates' keys in Redis or Valkey, version 6 or later (7 for sharded messages), single, Sentinel or Cluster, in
// the layout of Redisson's RPermitExpirableSemaphore. It implements gate.Store.
//
// Layout, for a key N, all in one slot:
//
//	N                    string: free permits; may be negative       } Redisson's
//	{N}:timeout          zset: 16 raw bytes of an id, expiry in ms   }
//	redisson_sc:{N}      channel: an integer ≥ 1, "try again"        }
//	{N}:usher            hash: v 1, limit, fence, reopen, auto, renew; settled (until), by, verdict; node, until, overtaken of the promise
//	{N}:usher:id:{hex}   string: what is known of an id: fence, permits of its acquire, when it is forgotten, lease, "r" once released
//
// Decisions are made at the server's time. A failover that loses writes may grant once more what was granted; the fence
// is greater than the lost one as far as the new server's clock is not behind.
type Gates struct {
	client  rueidis.Client
	sharded bool
	publish string
}

var _ gate.Store = (*Gates)(nil)

// GateOptions of NewGates. The zero value is a good one.
type GateOptions struct {
	// Messages says how waiters are woken: MessagesAuto chooses as Redisson does by default. All who share a key must
	// choose the same, or they do not wake each other at once.
	Messages Messages
}

// Messages is a kind of publishing.
type Messages uint8

const (
	MessagesAuto    Messages = iota // sharded on a Cluster that knows them, plain elsewhere
	MessagesPlain                   // PUBLISH; Redisson's shardedSubscriptionMode OFF
	MessagesSharded                 // SPUBLISH; ON
)

// NewGates makes a store on a client that stays the caller's to close. It asks the server what it is, unless told how to
// publish.
func NewGates(ctx context.Context, client rueidis.Client, opts GateOptions) (*Gates, error) {
	s := &Gates{client: client, sharded: opts.Messages == MessagesSharded}
	if opts.Messages == MessagesAuto {
		info, err := client.Do(ctx, client.B().Info().Section("cluster").Build()).ToString()
		if err != nil {
			return nil, fmt.Errorf("%w: redis: %w", gate.ErrUnavailable, err)
		}
		if strings.Contains(info, "cluster_enabled:1") {
			err := client.Do(ctx, client.B().PubsubShardnumsub().Build()).Error()
			if err != nil && !isAnswer(err) {
				return nil, fmt.Errorf("%w: redis: %w", gate.ErrUnavailable, err)
			}
			s.sharded = err == nil
		}
	}
	s.publish = "PUBLISH"
	if s.sharded {
		s.publish = "SPUBLISH"
	}
	return s, nil
}

func isAnswer(err error) bool {
	var re *rueidis.RedisError
	return errors.As(err, &re)
}

var (
	//go:embed gate_prelude.lua
	gatePrelude string
	//go:embed gate_acquire.lua
	gateAcquireSource string
	//go:embed gate_release.lua
	gateReleaseSource string
	//go:embed gate_extend.lua
	gateExtendSource string
	//go:embed gate_rest.lua
	gateRestSource string

	gateAcquire = gateScript(gateAcquireSource, true, true)
	gateRelease = gateScript(gateReleaseSource, false, true)
	gateExtend  = gateScript(gateExtendSource, false, false)
	gateRest    = gateScript(gateRestSource, true, false)
)

// gateScript puts the prelude before a script. all: it looks at the promise and the verdict too; quick: it does not count
// who holds a permit.
func gateScript(source string, all, quick bool) *rueidis.Lua {
	prelude := gatePrelude
	if quick {
		prelude = strings.Replace(prelude, "QUICK = false--[[QUICK]]", "QUICK = true", 1)
	}
	if all {
		prelude = strings.Replace(prelude, "--[[MORE]]", ", 'node', 'until', 'overtaken', 'settled', 'by', 'verdict', 'renew'", 1)
	}
	return rueidis.NewLuaScript(prelude + source)
}

func gateChannel(key string) string { return "redisson_sc:{" + key + "}" }

func gateKeys(key string) []string {
	tag := "{" + key + "}"
	return []string{key, tag + ":timeout", tag + ":usher"}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Do implements gate.Store.
func (s *Gates) Do(ctx context.Context, key string, c *gate.Command) (gate.Result, error) {
	if err := gate.CheckKey(key); err != nil {
		return gate.Result{}, err
	}
	if err := c.Check(); err != nil {
		return gate.Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return gate.Result{}, err
	}
	var earlier gate.Result
	for n := max(c.N, 1); ; {
		res, all, err := s.run(ctx, key, c, n)
		res.Expired += earlier.Expired
		res.More = res.More || earlier.More
		res.Wake = res.Wake || earlier.Wake
		if err != nil || !all {
			return res, err
		}
		// The acquire had more permits than the caller's hint said.
		earlier, n = res, res.N
	}
}

// run calls the command's script, believing that the acquire had n permits. all: it had more, Result.N.
func (s *Gates) run(ctx context.Context, key string, c *gate.Command, n int) (res gate.Result, all bool, err error) {
	script, args, keys := gateRest, []string{gateChannel(key), s.publish}, gateKeys(key)
	ids := func() {
		for _, id := range c.ID.Members(n) {
			args, keys = append(args, string(id[:])), append(keys, keys[2]+":id:"+id.String())
		}
	}
	switch c.Op {
	case gate.OpAcquire:
		script = gateAcquire
		args = append(args, millis(c.Lease), strconv.FormatInt(c.Permits, 10), millis(max(c.Idle, 4*c.Lease)),
			strconv.FormatUint(c.Node, 10), millis(c.Patience))
		ids()
	case gate.OpRelease:
		script = gateRelease
		ids()
	case gate.OpExtend:
		script, args = gateExtend, append(args, millis(c.Lease))
		ids()
	case gate.OpSettle:
		args = append(args, "settle", strconv.FormatUint(c.Fence, 10), millis(c.TTL), c.Verdict)
		keys = append(keys, keys[2]+":id:"+c.ID.String())
	case gate.OpSet:
		args = append(args, "set", strconv.FormatInt(c.Permits, 10))
	default:
		args = append(args, c.Op.String())
	}
	msgs, err := script.Exec(ctx, s.client, keys, args).ToArray()
	if err != nil {
		return gate.Result{}, false, gateError(key, err)
	}
	return gateResult(msgs)
}

// gateResult reads what gate_prelude.lua's done returns.
func gateResult(msgs []rueidis.RedisMessage) (res gate.Result, all bool, err error) {
	if len(msgs) != 15 {
		return res, false, fmt.Errorf("%w: redis: a gate script gave %d values, not 15", gate.ErrUnknown, len(msgs))
	}
	text := func(i int) string {
		t, terr := msgs[i].ToString()
		if terr != nil && err == nil {
			err = fmt.Errorf("%w: redis: a gate script's value %d: %w", gate.ErrUnknown, i, terr)
		}
		return t
	}
	num := func(i int) int64 {
		n, nerr := msgs[i].AsInt64()
		if nerr != nil && err == nil {
			err = fmt.Errorf("%w: redis: a gate script's value %d: %w", gate.ErrUnknown, i, nerr)
		}
		return n
	}
	res = gate.Result{
		At: num(1), N: int(num(2)), Fence: uint64(num(3)), Expires: num(4), Again: num(5) == 1,
		Verdict: text(6), Until: num(7), Next: time.Duration(num(8)) * time.Millisecond,
		Set: num(9) == 1, Limit: num(10), Free: num(11), Expired: int(num(12)), More: num(13) == 1, Wake: num(14) == 1,
	}
	answer := text(0)
	switch answer {
	case "":
	case "all":
		return res, true, err
	case "full":
		res.Err = gate.ErrFull
	case "settled":
		res.Err = gate.ErrSettled
	case "expired":
		res.Err = gate.ErrExpired
	case "released":
		res.Err = gate.ErrReleased
	case "notset":
		res.Err = gate.ErrNotSet
	case "stale":
		res.Err = gate.ErrStale
	default:
		err = fmt.Errorf("%w: redis: a gate script answered %q", gate.ErrUnknown, answer)
	}
	return res, false, err
}

// gateError tells what was certainly not done from what may have been.
func gateError(key string, err error) error {
	var re *rueidis.RedisError
	var op *net.OpError
	switch {
	case errors.As(err, &re):
		if _, what, ok := strings.Cut(re.Error(), "USHERTYPE "); ok {
			return fmt.Errorf("%w: redis: %s", gate.ErrUnavailable, what)
		}
		return fmt.Errorf("%w: redis: gate %s: %w", gate.ErrUnavailable, key, err)
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, rueidis.ErrClosing):
		return fmt.Errorf("%w: redis: gate %s: %w", gate.ErrUnavailable, key, err)
	}
	return fmt.Errorf("%w: redis: gate %s: %w", gate.ErrUnknown, key, err)
}

// Watch implements gate.Store. It subscribes anew, after a pause that doubles to a second, as often as it must, and wakes
// each time.
func (s *Gates) Watch(ctx context.Context, key string, wake func()) error {
	if err := gate.CheckKey(key); err != nil {
		return err
	}
	err := listen(ctx, s.client, func() rueidis.Completed {
		if s.sharded {
			return s.client.B().Ssubscribe().Channel(gateChannel(key)).Build()
		}
		return s.client.B().Subscribe().Channel(gateChannel(key)).Build()
	}, wake)
	if refused := (errListen{}); errors.As(err, &refused) {
		return fmt.Errorf("%w: redis: %w", gate.ErrUnavailable, refused.error)
	}
	return err
}

// Health implements gate.Store.
func (s *Gates) Health() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.client.Do(ctx, s.client.B().Ping().Build()).Error(); err != nil {
		return fmt.Errorf("%w: redis: %w; see that it runs and that engine.addrs and the password are right", gate.ErrUnavailable, err)
	}
	return nil
}
