// Package dynamosink keeps a keeper's messages in a DynamoDB table: one item a message, each once.
//
// The table has the partition key Pk (S), the connection's id, and the sort key Seq (N). A message has fence, at_ms (N),
// is_binary (BOOL) and data (B); the item with Seq -1 has the connection's fence. A message is put if it is not there. The fence is
// read before messages are written and not in one step with them, for DynamoDB has that only in transactions at twice the
// price: of a zombie's batch that was on its way when a higher fence came, messages may still be written. Each is there once
// all the same, and as the upstream sent it.
//
// A longer message than MaxMessage is never stored: the keeper's must not be above it.
package dynamosink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ushergo/usher/keeper"
)

// Sink is a table. Safe for concurrent use.
type Sink struct {
	client *dynamodb.Client
	table  string
	slots  chan struct{}
}

var _ keeper.Sink = (*Sink)(nil)

// MaxMessage is the longest message in bytes: an item may have 400 KB with its keys and names.
const MaxMessage = 390 << 10

const (
	sideBySide = 32  // requests under way
	readAtOnce = 100 // items of one BatchGetItem
	fenceSeq   = "-1"
)

// New is the sink of a table that Create makes.
func New(client *dynamodb.Client, table string) *Sink {
	return &Sink{client: client, table: table, slots: make(chan struct{}, sideBySide)}
}

// Create makes the table, paid by request, and waits until it can be used. One that exists is left as it is.
func Create(ctx context.Context, client *dynamodb.Client, table string) error {
	_, err := client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: aws.String(table), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("Pk"), AttributeType: types.ScalarAttributeTypeS}, {AttributeName: aws.String("Seq"), AttributeType: types.ScalarAttributeTypeN},
		},
		KeySchema: []types.KeySchemaElement{{AttributeName: aws.String("Pk"), KeyType: types.KeyTypeHash}, {AttributeName: aws.String("Seq"), KeyType: types.KeyTypeRange}},
	})
	var exists *types.ResourceInUseException
	if err != nil && !errors.As(err, &exists) {
		return fmt.Errorf("dynamodb: table %s: %w", table, err)
	}
	w := dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 200*time.Millisecond, 5*time.Second
	})
	if err := w.Wait(ctx, &dynamodb.DescribeTableInput{TableName: aws.String(table)}, 5*time.Minute); err != nil {
		return fmt.Errorf("dynamodb: table %s is not active: %w", table, err)
	}
	return nil
}

// Ready is nil when the table is there and has the right keys.
func (s *Sink) Ready(ctx context.Context) error {
	out, err := s.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: aws.String(s.table)})
	var missing *types.ResourceNotFoundException
	switch {
	case errors.As(err, &missing):
		return fmt.Errorf("dynamodb: there is no table %s; make it with: aws dynamodb create-table --table-name %s --billing-mode PAY_PER_REQUEST "+
			"--attribute-definitions AttributeName=Pk,AttributeType=S AttributeName=Seq,AttributeType=N --key-schema AttributeName=Pk,KeyType=HASH AttributeName=Seq,KeyType=RANGE", s.table, s.table)
	case err != nil:
		return fmt.Errorf("dynamodb: table %s: %w", s.table, err)
	}
	k := out.Table.KeySchema
	if len(k) != 2 || aws.ToString(k[0].AttributeName) != "Pk" || aws.ToString(k[1].AttributeName) != "Seq" {
		return fmt.Errorf("dynamodb: table %s has other keys than Pk and Seq; name a table of its own for messages", s.table)
	}
	return nil
}

type item = map[string]types.AttributeValue

func key(connection, seq string) item {
	return item{"Pk": &types.AttributeValueMemberS{Value: connection}, "Seq": &types.AttributeValueMemberN{Value: seq}}
}

func number(n uint64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatUint(n, 10)}
}

// Store implements keeper.Sink.
func (s *Sink) Store(ctx context.Context, batches []keeper.Batch) ([]bool, error) {
	fences, err := s.fences(ctx, batches)
	if err != nil {
		return nil, err
	}
	ok := make([]bool, len(batches))
	err = s.each(ctx, len(batches), func(ctx context.Context, i int) (err error) {
		b := batches[i]
		ok[i] = b.Fence >= fences[b.Connection]
		if b.Fence > fences[b.Connection] {
			ok[i], err = s.raise(ctx, b.Connection, b.Fence)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	type message struct {
		b *keeper.Batch
		m *keeper.Message
	}
	var all []message
	for i := range batches {
		for j := range batches[i].Messages {
			if ok[i] {
				all = append(all, message{&batches[i], &batches[i].Messages[j]})
			}
		}
	}
	return ok, s.each(ctx, len(all), func(ctx context.Context, i int) error {
		return patiently(ctx, func() error { return s.put(ctx, all[i].b, all[i].m) })
	})
}

// each runs f for 0 to n-1, some side by side, and returns the first error.
func (s *Sink) each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range n {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-s.slots }()
			if err := f(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// fences reads the connections' fences as they are.
func (s *Sink) fences(ctx context.Context, batches []keeper.Batch) (map[string]uint64, error) {
	fences := map[string]uint64{}
	var keys []item
	for _, b := range batches {
		if _, there := fences[b.Connection]; !there {
			fences[b.Connection] = 0
			keys = append(keys, key(b.Connection, fenceSeq))
		}
	}
	for len(keys) > 0 {
		n := min(readAtOnce, len(keys))
		out, err := s.client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{
			s.table: {Keys: keys[:n], ConsistentRead: aws.Bool(true)},
		}})
		if err != nil {
			return nil, fmt.Errorf("dynamodb: table %s: %w", s.table, err)
		}
		for _, it := range out.Responses[s.table] {
			pk, ok1 := it["Pk"].(*types.AttributeValueMemberS)
			f, ok2 := it["fence"].(*types.AttributeValueMemberN)
			if !ok1 || !ok2 {
				return nil, fmt.Errorf("dynamodb: table %s holds an item of another layout; name a table of its own for messages", s.table)
			}
			if fences[pk.Value], err = strconv.ParseUint(f.Value, 10, 64); err != nil {
				return nil, fmt.Errorf("dynamodb: table %s: the fence of %s: %w", s.table, pk.Value, err)
			}
		}
		rest := out.UnprocessedKeys[s.table].Keys
		if len(rest) == n && ctx.Err() == nil { // throttled: not at once again
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
		keys = append(rest, keys[n:]...)
	}
	return fences, nil
}

// raise makes a higher fence known; false: there is a still higher one.
func (s *Sink) raise(ctx context.Context, connection string, fence uint64) (bool, error) {
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: aws.String(s.table), Key: key(connection, fenceSeq), UpdateExpression: aws.String("SET fence = :f"),
		ConditionExpression: aws.String("attribute_not_exists(fence) OR fence <= :f"), ExpressionAttributeValues: item{":f": number(fence)},
	})
	if refused(err) {
		return false, nil
	}
	return err == nil, s.explain(err)
}

func (s *Sink) put(ctx context.Context, b *keeper.Batch, m *keeper.Message) error {
	it := key(b.Connection, strconv.FormatInt(m.Seq, 10))
	it["fence"], it["at_ms"] = number(b.Fence), &types.AttributeValueMemberN{Value: strconv.FormatInt(m.At.UnixMilli(), 10)}
	it["is_binary"], it["data"] = &types.AttributeValueMemberBOOL{Value: m.Binary}, &types.AttributeValueMemberB{Value: m.Data}
	_, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: aws.String(s.table), Item: it, ConditionExpression: aws.String("attribute_not_exists(Pk)"),
	})
	if refused(err) {
		return nil // it is there
	}
	return s.explain(err)
}

// patiently repeats one request, beyond the SDK's own attempts, rather than let all of a call be repeated for it.
func patiently(ctx context.Context, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		if err == nil || try == 5 || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(20 * time.Millisecond << try)):
		}
	}
}

func (s *Sink) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("dynamodb: table %s: %w", s.table, err)
}

func refused(err error) bool {
	var c *types.ConditionalCheckFailedException
	return errors.As(err, &c)
}
