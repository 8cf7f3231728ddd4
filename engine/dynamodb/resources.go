package dynamodb

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ushergo/usher/lease"
)

// Put implements lease.Store. A new row is made in three steps: as new, which nobody may take; then the floor is read; then
// it gets that fence and its desired state. Whoever was deleted before the row was made is in the floor by then.
func (s *Leases) Put(ctx context.Context, p lease.Put) (lease.Row, error) {
	if err := p.Check(); err != nil {
		return lease.Row{}, err
	}
	for try := range tries {
		if err := pause(ctx, try); err != nil {
			return lease.Row{}, err
		}
		it, err := s.get(ctx, "Put", s.table, p.ID)
		if err != nil {
			return lease.Row{}, err
		}
		if it == nil {
			if it, err = s.make(ctx, p.ID); err != nil {
				return lease.Row{}, err
			}
			if it == nil {
				continue
			}
		}
		row, made, err := s.resource(it)
		if err != nil {
			return lease.Row{}, err
		}
		if made && (p.IfAbsent || row.Desired == p.Desired && row.URL == p.URL && bytes.Equal(row.Spec, p.Spec)) {
			return row, nil
		}
		u := update{
			table: s.table, pk: p.ID, set: "SET desired_state = :desired, spec = :spec, rev = :rev", when: "rev = :last AND desired_state <> :new",
			values:  item{":desired": str(string(p.Desired)), ":spec": &types.AttributeValueMemberB{Value: orEmpty(p.Spec)}, ":rev": num(row.Rev + 1), ":last": num(row.Rev), ":new": str(making)},
			returns: types.ReturnValueAllNew,
		}
		if !made {
			if err := s.finish(ctx, p, it, &u); err != nil {
				return lease.Row{}, err
			}
		}
		if p.URL != "" {
			u.set += ", ws_url = :url"
			u.values[":url"] = str(p.URL)
		}
		switch {
		case p.URL == "" && !made:
			u.set += " REMOVE ws_url, #token"
		case p.URL == "":
			u.set += " REMOVE ws_url"
		case !made:
			u.set += " REMOVE #token"
		}
		it, ok, err := s.write(ctx, "Put", u)
		if err != nil {
			return lease.Row{}, err
		}
		if ok {
			row, _, err = s.resource(it)
			return row, err
		}
	}
	return lease.Row{}, s.busy(p.ID)
}

func (s *Leases) busy(id string) error {
	return fmt.Errorf("%w: dynamodb: table %s: row %s is changed by others all the time", lease.ErrUnavailable, s.table, id)
}

func orEmpty(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// make begins a row; nil: there is one by now.
func (s *Leases) make(ctx context.Context, id string) (item, error) {
	it := item{
		"Pk": str(id), "desired_state": str(making), "lease_owner": str(nobody), "owner_generation": num(0), "fence": num(0),
		"last_seq": str(""), "rev": num(0), "token": str(rand.Text()), "v": num(1),
	}
	out, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: aws.String(s.table), Item: it, ConditionExpression: aws.String("attribute_not_exists(Pk)"), ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
	})
	switch {
	case refused(err):
		s.spent("Put", nil, 1)
		return nil, nil
	case err != nil:
		s.spent("Put", nil, 0)
		return nil, s.writeError(err)
	}
	s.spent("Put", out.ConsumedCapacity, 1)
	return it, nil
}

// finish completes the update of a row that was seen as new: with the floor as it is after that, and only if it is still the
// same new row.
func (s *Leases) finish(ctx context.Context, p lease.Put, it item, u *update) error {
	floor, err := s.floor(ctx)
	if err != nil {
		return err
	}
	u.set = "SET desired_state = :desired, spec = :spec, rev = :rev, fence = :fence, last_seq = :cursor"
	u.when = "#token = :token AND desired_state = :new"
	delete(u.values, ":last")
	u.names = map[string]string{"#token": "token"} // a reserved word
	u.values[":fence"], u.values[":cursor"], u.values[":token"] = num(floor), str(p.Cursor), it["token"]
	return nil
}

func (s *Leases) floor(ctx context.Context) (uint64, error) {
	it, err := s.get(ctx, "Put", s.table, floorPk)
	if it == nil || err != nil {
		return 0, err
	}
	r := &reader{it: it}
	return r.num("fence"), r.err
}

// pause is a moment before another try.
func pause(ctx context.Context, try int) error {
	if try == 0 {
		return nil
	}
	t := time.NewTimer(mathrand.N(time.Millisecond << min(try, 7)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", lease.ErrUnknown, ctx.Err())
	}
}

// Delete implements lease.Store. The fence is in the floor before the row is gone.
func (s *Leases) Delete(ctx context.Context, id string) (bool, error) {
	if err := lease.CheckID(id); err != nil {
		return false, err
	}
	was := false
	for try := range tries {
		if err := pause(ctx, try); err != nil {
			return false, err
		}
		it, err := s.get(ctx, "Delete", s.table, id)
		if err != nil {
			return false, err
		}
		if it == nil {
			return was, nil
		}
		row, made, err := s.resource(it)
		if err != nil {
			return false, err
		}
		was = was || made
		when, values := "fence = :f AND desired_state <> :new", item{":f": num(row.Fence), ":new": str(making)}
		if !made {
			when, values = "desired_state = :new", item{":new": str(making)}
		} else if row.Fence > 0 {
			_, _, err := s.write(ctx, "Delete", update{
				table: s.table, pk: floorPk, set: "SET fence = :f, v = :v", when: "attribute_not_exists(fence) OR fence < :f",
				values: item{":f": num(row.Fence), ":v": num(1)},
			})
			if err != nil {
				return false, err
			}
		}
		if ok, err := s.remove(ctx, "Delete", s.table, id, when, values); err != nil || ok {
			return was, err
		}
	}
	return false, s.busy(id)
}

// fence is the next one: max(last + 1, µs since 1970). A table that was made anew goes on above what the old one gave out, by
// whatever clocks; a row's own fences grow without any.
func fence(last uint64) uint64 { return max(last+1, uint64(max(time.Now().UnixMicro(), 0))) }

// Take implements lease.Store.
func (s *Leases) Take(ctx context.Context, t lease.Take) (lease.Taken, error) {
	if err := t.Check(); err != nil {
		return lease.Taken{}, err
	}
	it, ok, err := s.write(ctx, "Take", update{
		table: s.table, pk: t.ID, set: "SET lease_owner = :to, owner_generation = :g, fence = :next",
		when:    "lease_owner = :from AND fence = :fence AND desired_state = :started",
		values:  item{":to": owner(t.To), ":g": num(t.To.Generation), ":next": num(fence(t.Fence)), ":from": owner(t.From), ":fence": num(t.Fence), ":started": str(string(lease.Started))},
		returns: types.ReturnValueAllNew,
	})
	if err != nil {
		return lease.Taken{}, err
	}
	if !ok {
		if it, err = s.get(ctx, "Take", s.table, t.ID); it == nil || err != nil {
			return lease.Taken{}, err
		}
	}
	row, made, err := s.resource(it)
	if err != nil || !made {
		return lease.Taken{}, err
	}
	return lease.Taken{OK: ok || row.Owner == t.To && row.Fence > t.Fence, Row: row}, nil
}

// Release implements lease.Store.
func (s *Leases) Release(ctx context.Context, r lease.Release) (bool, error) {
	if err := r.Check(); err != nil {
		return false, err
	}
	u := update{
		table: s.table, pk: r.ID, set: "SET lease_owner = :nobody, owner_generation = :none", when: "lease_owner = :o AND fence = :f",
		values: item{":nobody": str(nobody), ":none": num(0), ":o": owner(r.Owner), ":f": num(r.Fence)},
	}
	if r.Stop {
		u.set += ", desired_state = :stopped, rev = rev + :one"
		u.values[":stopped"], u.values[":one"] = str(string(lease.Stopped)), num(1)
	}
	_, ok, err := s.write(ctx, "Release", u)
	return ok, err
}

// Flush implements lease.Store. DynamoDB has no batch of conditional writes; they go side by side.
func (s *Leases) Flush(ctx context.Context, cs []lease.Cursor) ([]bool, error) {
	if err := lease.CheckCursors(cs); err != nil {
		return nil, err
	}
	done := make([]bool, len(cs))
	errs := make([]error, len(cs))
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(len(cs), 16) {
		wg.Go(func() {
			for i := range next {
				c := cs[i]
				_, done[i], errs[i] = s.write(ctx, "Flush", update{
					table: s.table, pk: c.ID, set: "SET last_seq = :cursor", when: "lease_owner = :o AND fence = :f",
					values: item{":cursor": str(c.Cursor), ":o": owner(c.Owner), ":f": num(c.Fence)},
				})
			}
		})
	}
	for i := range cs {
		next <- i
	}
	close(next)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return done, nil
}
