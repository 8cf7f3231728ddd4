package dynamodb

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ushergo/usher/lease"
)

// Leases is a space of leases in two tables of DynamoDB. It implements lease.Store. Safe for concurrent use.
type Leases struct {
	client  *dynamodb.Client
	table   string
	workers string

	mu    sync.Mutex
	count map[string]Count
}

var _ lease.Store = (*Leases)(nil)

// NewLeases is the space of table and table-workers, which Create or the Terraform module of deploy/terraform makes.
func NewLeases(client *dynamodb.Client, table string) *Leases {
	return &Leases{client: client, table: table, workers: table + "-workers", count: map[string]Count{}}
}

// update is one conditional write of one row.
type update struct {
	table, pk, set, when string
	names                map[string]string
	values               item
	returns              types.ReturnValue
}

// write does it. ok is false when the condition did not hold.
func (s *Leases) write(ctx context.Context, op string, u update) (it item, ok bool, err error) {
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: aws.String(u.table), Key: key(u.pk), UpdateExpression: aws.String(u.set), ConditionExpression: aws.String(u.when),
		ExpressionAttributeNames: u.names, ExpressionAttributeValues: u.values, ReturnValues: u.returns,
		ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
	})
	switch {
	case refused(err):
		s.spent(op, nil, 1)
		return nil, false, nil
	case err != nil:
		s.spent(op, nil, 0)
		return nil, false, s.writeError(err)
	}
	s.spent(op, out.ConsumedCapacity, 1)
	return out.Attributes, true, nil
}

// get reads one row as it is; nil: there is none.
func (s *Leases) get(ctx context.Context, op, table, pk string) (item, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: aws.String(table), Key: key(pk), ConsistentRead: aws.Bool(true), ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
	})
	if err != nil {
		s.spent(op, nil, 0)
		return nil, s.readError(err)
	}
	s.spent(op, out.ConsumedCapacity, -1)
	if len(out.Item) == 0 {
		return nil, nil
	}
	return out.Item, nil
}

// Workers implements lease.Store.
func (s *Leases) Workers(ctx context.Context) ([]lease.WorkerRow, error) {
	var rows []lease.WorkerRow
	for start := item(nil); ; {
		out, err := s.client.Scan(ctx, &dynamodb.ScanInput{
			TableName: aws.String(s.workers), ConsistentRead: aws.Bool(true), ExclusiveStartKey: start, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		if err != nil {
			s.spent("Workers", nil, 0)
			return nil, s.readError(err)
		}
		s.spent("Workers", out.ConsumedCapacity, -1)
		for _, it := range out.Items {
			w, _, err := s.worker(it)
			if err != nil {
				return nil, err
			}
			rows = append(rows, w)
		}
		if start = out.LastEvaluatedKey; len(start) == 0 {
			return rows, nil
		}
	}
}

// tries bounds how often a write is tried whose row others change at the same time.
const tries = 16

// Join implements lease.Store.
func (s *Leases) Join(ctx context.Context, j lease.Join) (lease.Joined, error) {
	if err := j.Check(); err != nil {
		return lease.Joined{}, err
	}
	for range tries {
		it, err := s.get(ctx, "Join", s.workers, j.Worker)
		if err != nil {
			return lease.Joined{}, err
		}
		when, values := "attribute_not_exists(Pk)", item{}
		var last uint64
		if it != nil {
			w, token, err := s.worker(it)
			if err != nil {
				return lease.Joined{}, err
			}
			if !w.Dead {
				return lease.Joined{OK: token == j.Token, Owner: w.Owner}, nil
			}
			last = w.Generation
			when, values = "dead = :yes AND generation = :last", item{":yes": yes(true), ":last": num(last)}
		}
		o := lease.Owner{Worker: j.Worker, Generation: max(last+1, uint64(time.Now().UnixMicro()))}
		out, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
			TableName: aws.String(s.workers), ConditionExpression: aws.String(when), ExpressionAttributeValues: orNil(values),
			ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
			Item: item{
				"Pk": str(j.Worker), "generation": num(o.Generation), "beat": num(0), "held": num(0), "cap": num(j.Cap),
				"leaving": yes(false), "dead": yes(false), "info": str("-"), "token": str(j.Token), "v": num(1),
			},
		})
		switch {
		case refused(err): // somebody else was first, or it was this one, at an attempt whose answer was lost
			s.spent("Join", nil, 1)
		case err != nil:
			s.spent("Join", nil, 0)
			return lease.Joined{}, s.writeError(err)
		default:
			s.spent("Join", out.ConsumedCapacity, 1)
			return lease.Joined{OK: true, Owner: o}, nil
		}
	}
	return lease.Joined{}, fmt.Errorf("%w: dynamodb: worker %s: its row changes all the time", lease.ErrUnavailable, j.Worker)
}

func orNil(it item) item {
	if len(it) == 0 {
		return nil
	}
	return it
}

// living reads whether a generation lives, after a condition said that something is not as it was thought.
func (s *Leases) living(ctx context.Context, op string, o lease.Owner) (bool, error) {
	it, err := s.get(ctx, op, s.workers, o.Worker)
	if it == nil || err != nil {
		return false, err
	}
	w, _, err := s.worker(it)
	return err == nil && w.Owner == o && !w.Dead, err
}

// Beat implements lease.Store.
func (s *Leases) Beat(ctx context.Context, b lease.Beat) (bool, error) {
	if err := b.Check(); err != nil {
		return false, err
	}
	_, ok, err := s.write(ctx, "Beat", update{
		table: s.workers, pk: b.Worker, set: "SET beat = :beat, held = :held, leaving = :leaving, info = :info",
		when:   "generation = :g AND dead = :no AND beat < :beat",
		values: item{":beat": num(b.Beat), ":held": num(b.Held), ":leaving": yes(b.Leaving), ":info": str("-" + b.Info), ":g": num(b.Generation), ":no": yes(false)},
	})
	if ok || err != nil {
		return ok, err
	}
	return s.living(ctx, "Beat", b.Owner)
}

// Mark implements lease.Store.
func (s *Leases) Mark(ctx context.Context, m lease.Mark) (bool, error) {
	if err := m.Owner.Check(); err != nil {
		return false, err
	}
	_, ok, err := s.write(ctx, "Mark", update{
		table: s.workers, pk: m.Worker, set: "SET dead = :yes", when: "generation = :g AND dead = :no AND beat = :beat",
		values: item{":yes": yes(true), ":no": yes(false), ":g": num(m.Generation), ":beat": num(m.Beat)},
	})
	if ok || err != nil {
		return ok, err
	}
	lives, err := s.living(ctx, "Mark", m.Owner)
	return !lives, err
}

// Leave implements lease.Store.
func (s *Leases) Leave(ctx context.Context, o lease.Owner) error {
	if err := o.Check(); err != nil {
		return err
	}
	_, _, err := s.write(ctx, "Leave", update{
		table: s.workers, pk: o.Worker, set: "SET dead = :yes, held = :none", when: "generation = :g",
		values: item{":yes": yes(true), ":none": num(0), ":g": num(o.Generation)},
	})
	return err
}

// Forget implements lease.Store.
func (s *Leases) Forget(ctx context.Context, o lease.Owner) error {
	if err := o.Check(); err != nil {
		return err
	}
	_, err := s.remove(ctx, "Forget", s.workers, o.Worker, "generation = :g AND dead = :yes", item{":g": num(o.Generation), ":yes": yes(true)})
	return err
}

// remove deletes a row, if the condition holds.
func (s *Leases) remove(ctx context.Context, op, table, pk, when string, values item) (bool, error) {
	out, err := s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName: aws.String(table), Key: key(pk), ConditionExpression: aws.String(when), ExpressionAttributeValues: values,
		ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
	})
	switch {
	case refused(err):
		s.spent(op, nil, 1)
		return false, nil
	case err != nil:
		s.spent(op, nil, 0)
		return false, s.writeError(err)
	}
	s.spent(op, out.ConsumedCapacity, 1)
	return true, nil
}

// Health implements lease.Store.
func (s *Leases) Health() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, table := range []string{s.table, s.workers} {
		if _, err := s.get(ctx, "Health", table, floorPk); err != nil {
			return err
		}
	}
	return nil
}
