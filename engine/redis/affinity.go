package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/affinity"
)

// Directory is a directory of sessions (affinity.Store) in Redis or Valkey, version 6 or later: single, Sentinel or
// Cluster. A failover may lose the latest rows: their owners hear it at their next refresh and close their sessions.
// Generations are max(last + 1, the server's time in µs), so they grow also when the counter is lost.
//
// Layout, for a space S and the part P (0 to 15) that a key K belongs to, all in one slot:
//
//	usher:affinity:{S/P}            string: the last generation. It has no expiry
//	usher:affinity:{S/P}:K          hash: v 1, state, instance, epoch, addr, session, gen, token, until; expires
//	usher:affinity:{S}:instances    hash: instance → epoch until sessions max draining asked addr; asked: 0, 1 or how long, in µs
type Directory struct {
	client rueidis.Client
}

var _ affinity.Store = (*Directory)(nil)

// NewDirectory makes a directory on a client that stays the caller's to close.
func NewDirectory(client rueidis.Client) *Directory { return &Directory{client: client} }

var (
	//go:embed affinity.lua
	affinitySource string

	affinityScript = rueidis.NewLuaScript(affinitySource)
)

// refreshChunk is how many rows one script call confirms: well under 5 ms of the server's time.
const refreshChunk = 200

func affinityPart(space string, part int) string {
	return "usher:affinity:{" + space + "/" + strconv.Itoa(part) + "}"
}

func affinityRowKeys(space, key string) []string {
	tag := affinityPart(space, affinity.ShardOf(key))
	return []string{tag, tag + ":" + key}
}

func affinityInstancesKey(space string) []string {
	return []string{"usher:affinity:{" + space + "}:instances"}
}

func affinityAnswer(space string, res rueidis.RedisResult) (flightReply, error) {
	msgs, err := res.AsStrSlice()
	if err != nil {
		var re *rueidis.RedisError
		if errors.As(err, &re) && strings.Contains(re.Error(), "USHERLAYOUT") {
			_, what, _ := strings.Cut(re.Error(), "USHERLAYOUT ")
			return nil, fmt.Errorf("redis: %s: %w", what, affinity.ErrForeign)
		}
		return nil, fmt.Errorf("%w: redis: affinity %s: %w", affinity.ErrUnavailable, space, err)
	}
	return msgs, nil
}

func (d *Directory) run(ctx context.Context, bad error, space string, keys []string, args ...string) (flightReply, error) {
	if bad != nil {
		return nil, bad
	}
	return affinityAnswer(space, affinityScript.Exec(ctx, d.client, keys, args))
}

func affinityNumber(n uint64) string { return strconv.FormatUint(n, 10) }

func affinityBool(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// row reads state, instance, epoch, addr, session, gen, left, which stand from 2 on.
func affinityRow(r flightReply) affinity.Row {
	row := affinity.Row{At: flightTime(r.num(0)), State: affinity.State(r.num(2))}
	if row.State == affinity.None {
		return row
	}
	row.Owner = affinity.Identity{Instance: r.str(3), Epoch: uint64(r.num(4))}
	row.Addr, row.Session, row.Generation = r.str(5), r.str(6), uint64(r.num(7))
	row.Left = time.Duration(r.num(8)) * time.Microsecond
	return row
}

// Claim implements affinity.Store.
func (d *Directory) Claim(ctx context.Context, c affinity.Claim) (affinity.Claimed, error) {
	r, err := d.run(ctx, c.Check(), c.Space, affinityRowKeys(c.Space, c.Key),
		"claim", c.Owner.Instance, affinityNumber(c.Owner.Epoch), c.Addr, c.Token, flightMicros(c.Build))
	if err != nil {
		return affinity.Claimed{}, err
	}
	return affinity.Claimed{Verdict: affinity.Verdict(r.num(1)), Row: affinityRow(r)}, nil
}

// Refresh implements affinity.Store. The parts of a space are asked side by side.
func (d *Directory) Refresh(ctx context.Context, f affinity.Refresh) (affinity.Refreshed, error) {
	if err := f.Check(); err != nil {
		return affinity.Refreshed{}, err
	}
	var parts [affinity.Shards][]int
	for i, it := range f.Items {
		p := affinity.ShardOf(it.Key)
		parts[p] = append(parts[p], i)
	}
	var calls []rueidis.LuaExec
	var of [][]int
	for p, all := range parts {
		for items := range slices.Chunk(all, refreshChunk) {
			keys := []string{affinityPart(f.Space, p)}
			args := []string{"refresh", f.Owner.Instance, affinityNumber(f.Owner.Epoch), flightMicros(f.TTL)}
			for _, i := range items {
				it := f.Items[i]
				keys = append(keys, keys[0]+":"+it.Key)
				args = append(args, affinityNumber(it.Generation), affinityBool(it.Ready), it.Session)
			}
			calls = append(calls, rueidis.LuaExec{Keys: keys, Args: args})
			of = append(of, items)
		}
	}
	out := affinity.Refreshed{Held: make([]bool, len(f.Items))}
	if len(calls) == 0 {
		return out, nil
	}
	for n, res := range affinityScript.ExecMulti(ctx, d.client, calls...) {
		r, err := affinityAnswer(f.Space, res)
		if err != nil {
			return affinity.Refreshed{}, err
		}
		out.At = flightTime(r.num(0))
		for k, i := range of[n] {
			out.Held[i] = r.num(k+1) == 1
		}
	}
	return out, nil
}

// Clear implements affinity.Store.
func (d *Directory) Clear(ctx context.Context, c affinity.Clear) (affinity.Cleared, error) {
	r, err := d.run(ctx, c.Check(), c.Space, affinityRowKeys(c.Space, c.Key),
		"clear", c.Owner.Instance, affinityNumber(c.Owner.Epoch), affinityNumber(c.Generation))
	return affinity.Cleared{At: flightTime(r.num(0)), Cleared: r.num(1) == 1}, err
}

// Get implements affinity.Store.
func (d *Directory) Get(ctx context.Context, space, key string) (affinity.Row, error) {
	r, err := d.run(ctx, affinity.CheckKey(space, key), space, affinityRowKeys(space, key), "get")
	if err != nil {
		return affinity.Row{}, err
	}
	return affinityRow(r), nil
}

// Announce implements affinity.Store.
func (d *Directory) Announce(ctx context.Context, a affinity.Announce) (affinity.Announced, error) {
	r, err := d.run(ctx, a.Check(), a.Space, affinityInstancesKey(a.Space), "announce", a.Owner.Instance, affinityNumber(a.Owner.Epoch),
		flightMicros(a.TTL), strconv.Itoa(a.Sessions), strconv.Itoa(a.Max), affinityBool(a.Draining), a.Addr)
	out := affinity.Announced{At: flightTime(r.num(0)), Superseded: r.num(1) == 1, Draining: r.num(2) > 0}
	if asked := r.num(2); asked > 1 {
		out.DrainFor = time.Duration(asked) * time.Microsecond
	}
	return out, err
}

// Drain implements affinity.Store.
func (d *Directory) Drain(ctx context.Context, x affinity.Drain) (bool, error) {
	asked := affinityBool(x.On)
	if x.On && x.For > 0 {
		asked = flightMicros(x.For)
	}
	r, err := d.run(ctx, x.Check(), x.Space, affinityInstancesKey(x.Space), "drain", x.Instance, asked)
	return r.num(1) == 1, err
}

// Instances implements affinity.Store.
func (d *Directory) Instances(ctx context.Context, space string) ([]affinity.Instance, error) {
	r, err := d.run(ctx, affinity.CheckSpace(space), space, affinityInstancesKey(space), "instances")
	if err != nil {
		return nil, err
	}
	var list []affinity.Instance
	for i := 1; i+7 < len(r); i += 8 {
		list = append(list, affinity.Instance{
			Owner: affinity.Identity{Instance: r.str(i), Epoch: uint64(r.num(i + 1))}, Addr: r.str(i + 2),
			Sessions: int(r.num(i + 3)), Max: int(r.num(i + 4)), Draining: r.num(i+5) == 1 || r.num(i+6) > 0,
			Left: time.Duration(r.num(i+7)) * time.Microsecond,
		})
	}
	slices.SortFunc(list, func(a, b affinity.Instance) int { return strings.Compare(a.Owner.Instance, b.Owner.Instance) })
	return list, nil
}
