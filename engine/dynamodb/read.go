package dynamodb

import (
	"context"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ushergo/usher/lease"
)

// batch is how many rows BatchGetItem gives at most.
const batch = 100

// Get implements lease.Store.
func (s *Leases) Get(ctx context.Context, ids []string) ([]lease.Row, error) {
	if err := lease.CheckIDs(ids); err != nil {
		return nil, err
	}
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids) // BatchGetItem refuses the same twice
	var rows []lease.Row
	for some := range slices.Chunk(ids, batch) {
		keys := make([]item, len(some))
		for i, id := range some {
			keys[i] = key(id)
		}
		for try := 0; len(keys) > 0; try++ {
			if err := pause(ctx, try); err != nil {
				return nil, fmt.Errorf("%w: %w", lease.ErrUnavailable, ctx.Err())
			}
			if try == tries {
				return nil, fmt.Errorf("%w: dynamodb: table %s: throttled; give it more read capacity, or on-demand billing", lease.ErrUnavailable, s.table)
			}
			out, err := s.client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{
				RequestItems:           map[string]types.KeysAndAttributes{s.table: {Keys: keys, ConsistentRead: aws.Bool(true)}},
				ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
			})
			if err != nil {
				s.spent("Get", nil, 0)
				return nil, s.readError(err)
			}
			s.spentAll("Get", out.ConsumedCapacity)
			if rows, err = s.collect(rows, out.Responses[s.table]); err != nil {
				return nil, err
			}
			keys = out.UnprocessedKeys[s.table].Keys
		}
	}
	return rows, nil
}

// collect reads rows, but for what is not a resource, or not yet.
func (s *Leases) collect(rows []lease.Row, items []item) ([]lease.Row, error) {
	for _, it := range items {
		if pk, ok := it["Pk"].(*types.AttributeValueMemberS); ok && pk.Value == floorPk {
			continue
		}
		row, made, err := s.resource(it)
		if err != nil {
			return nil, err
		}
		if made {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// List implements lease.Store: it reads on in the table's own order.
func (s *Leases) List(ctx context.Context, after string, limit int) ([]lease.Row, string, error) {
	if err := lease.CheckList(after, limit); err != nil {
		return nil, "", err
	}
	var rows []lease.Row
	var start item
	if after != "" {
		start = key(after)
	}
	for {
		out, err := s.client.Scan(ctx, &dynamodb.ScanInput{
			TableName: aws.String(s.table), Limit: aws.Int32(int32(limit - len(rows))), ExclusiveStartKey: start,
			ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		if err != nil {
			s.spent("List", nil, 0)
			return nil, "", s.readError(err)
		}
		s.spent("List", out.ConsumedCapacity, -1)
		if rows, err = s.collect(rows, out.Items); err != nil {
			return nil, "", err
		}
		start = out.LastEvaluatedKey
		if len(start) == 0 {
			return rows, "", nil
		}
		if len(rows) == limit {
			return rows, rows[limit-1].ID, nil
		}
	}
}

// Owned implements lease.Store.
func (s *Leases) Owned(ctx context.Context, o lease.Owner) ([]lease.Brief, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	return s.query(ctx, "Owned", nil, 1<<30, "desired_state = :s AND lease_owner = :o", item{":o": owner(o)})
}

// Orphans implements lease.Store: it reads what lies between the names of the living, so nothing of theirs.
func (s *Leases) Orphans(ctx context.Context, living []lease.Owner, limit int) (list []lease.Brief, err error) {
	names := make([]string, len(living))
	for i, o := range living {
		names[i] = o.String()
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return s.query(ctx, "Orphans", nil, limit, "desired_state = :s", nil)
	}
	last := len(names) - 1
	list, err = s.query(ctx, "Orphans", nil, limit, "desired_state = :s AND lease_owner < :high", item{":high": str(names[0])})
	for i := 0; i < last && err == nil && len(list) < limit; i++ {
		low, high := between(names[i], names[i+1])
		list, err = s.query(ctx, "Orphans", list, limit, "desired_state = :s AND lease_owner BETWEEN :low AND :high", item{":low": str(low), ":high": str(high)})
	}
	if err == nil && len(list) < limit {
		list, err = s.query(ctx, "Orphans", list, limit, "desired_state = :s AND lease_owner > :low", item{":low": str(names[last])})
	}
	return list, err
}

// between gives bounds, themselves no owners, of all owners greater than a and smaller than b. '!' is below and '~' above
// every letter of an owner; b's last letter is a digit.
func between(a, b string) (low, high string) {
	n := len(b) - 1
	return a + "!", b[:n] + string(b[n]-1) + "~"
}

// query reads rows of the index onto list.
func (s *Leases) query(ctx context.Context, op string, list []lease.Brief, limit int, when string, values item) ([]lease.Brief, error) {
	if values == nil {
		values = item{}
	}
	values[":s"] = str(string(lease.Started))
	for start := item(nil); ; {
		out, err := s.client.Query(ctx, &dynamodb.QueryInput{
			TableName: aws.String(s.table), IndexName: aws.String(index), KeyConditionExpression: aws.String(when), ExpressionAttributeValues: values,
			ExclusiveStartKey: start, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		if err != nil {
			s.spent(op, nil, 0)
			return nil, s.readError(err)
		}
		s.spent(op, out.ConsumedCapacity, -1)
		for _, it := range out.Items {
			b, err := brief(it)
			if err != nil {
				return nil, err
			}
			if list = append(list, b); len(list) >= limit {
				return list, nil
			}
		}
		if start = out.LastEvaluatedKey; len(start) == 0 {
			return list, nil
		}
	}
}
