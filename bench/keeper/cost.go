package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsdynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/ushergo/usher/engine/dynamodb"
	"github.com/ushergo/usher/lease"
)

// Prices in US dollars, us-east-1, as published for the standard table class since November 2024. Other regions cost up to
// half as much again; the ratio between the columns is the same.
const (
	perMillionWrites = 0.625
	perMillionReads  = 0.125
	writeUnitHour    = 0.00065
	readUnitHour     = 0.00013
	hours            = 730
	// Provisioned capacity is bought for peaks: this much of it is used on the mean.
	used = 0.7
)

// usage is units a second.
type usage struct{ requests, reads, writes float64 }

func total(counts map[string]dynamodb.Count) (u usage) {
	for _, c := range counts {
		u.requests += float64(c.Requests)
		u.reads += c.ReadUnits
		u.writes += c.WriteUnits
	}
	return u
}

func (u usage) minus(v usage) usage {
	return usage{u.requests - v.requests, u.reads - v.reads, u.writes - v.writes}
}

func (u usage) per(d time.Duration) usage {
	s := d.Seconds()
	return usage{u.requests / s, u.reads / s, u.writes / s}
}

func (u usage) onDemand() float64 {
	const month = hours * 3600
	return (u.writes*perMillionWrites + u.reads*perMillionReads) * month / 1e6
}

func (u usage) provisioned() float64 {
	return (u.writes*writeUnitHour + u.reads*readUnitHour) / used * hours
}

// fleet is workers of one space, without sockets.
type fleet struct {
	client  *awsdynamodb.Client
	table   string
	stores  []*dynamodb.Leases
	workers []*lease.Worker
	moving  bool
	mu      sync.Mutex
	holding int
}

func (f *fleet) serve(ctx context.Context, r lease.Resource) error {
	f.mu.Lock()
	f.holding++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.holding--
		f.mu.Unlock()
	}()
	for n := int64(1); ; n++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
		if f.moving { // a message a second: the cursor moves at each flush
			r.SetCursor(strconv.FormatInt(n, 10))
		}
	}
}

func (f *fleet) held() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holding
}

func (f *fleet) start(flush time.Duration) error {
	store, name := dynamodb.NewLeases(f.client, f.table), fmt.Sprintf("w%d", len(f.stores)+1)
	w, err := lease.New(store, lease.Options{Worker: name, Flush: flush, Serve: f.serve})
	if err != nil {
		return err
	}
	f.stores = append(f.stores, store)
	f.workers = append(f.workers, w)
	return nil
}

// left is what is known when something is waited for in vain.
func (f *fleet) left() (text string) {
	for _, w := range f.workers {
		text += fmt.Sprintf("\n%s: %+v", w.Name(), w.Stats())
	}
	return text
}

// close stops a worker gracefully.
func (f *fleet) close(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return f.workers[i].Close(ctx)
}

func (f *fleet) spent() (u usage) {
	for _, s := range f.stores {
		t := total(s.Counts())
		u.requests, u.reads, u.writes = u.requests+t.requests, u.reads+t.reads, u.writes+t.writes
	}
	return u
}

func (f *fleet) methods() map[string]dynamodb.Count {
	all := map[string]dynamodb.Count{}
	for _, s := range f.stores {
		for op, c := range s.Counts() {
			t := all[op]
			all[op] = dynamodb.Count{Requests: t.Requests + c.Requests, ReadUnits: t.ReadUnits + c.ReadUnits, WriteUnits: t.WriteUnits + c.WriteUnits}
		}
	}
	return all
}

// run measures n resources on 3 workers: a quiet stretch, and the cost of a redeploy of one worker.
func run(ctx context.Context, client *awsdynamodb.Client, n int, moving bool, flush, long time.Duration) (steady, redeploy usage, f *fleet, err error) {
	f = &fleet{client: client, table: fmt.Sprintf("t%d-%v-%d", n, moving, flush/time.Second), moving: moving}
	if _, err := dynamodb.Create(ctx, client, f.table, dynamodb.CreateOptions{}); err != nil {
		return usage{}, usage{}, f, err
	}
	setup := dynamodb.NewLeases(client, f.table)
	for i := range n {
		_, err := setup.Put(ctx, lease.Put{
			ID: fmt.Sprintf("call-%05d", i), Desired: lease.Started, URL: "wss://feed.example.com/v1/streams/call",
			Spec: []byte(`{"headers":{"Authorization":"Bearer 0123456789abcdef0123456789abcdef"},"cursor":{"json":"seq"},"resume":{"query":"from={cursor}&fence={fence}"}}`),
		})
		if err != nil {
			return usage{}, usage{}, f, err
		}
	}
	for range 3 {
		if err := f.start(flush); err != nil {
			return usage{}, usage{}, f, err
		}
	}
	defer func() {
		for i := range f.workers {
			_ = f.close(ctx, i)
		}
	}()
	if err := f.all(ctx, n); err != nil {
		return usage{}, usage{}, f, err
	}
	if !rest(ctx, 30*time.Second) { // shares are even
		return usage{}, usage{}, f, ctx.Err()
	}
	before, began := f.spent(), time.Now()
	rest(ctx, long)
	steady = f.spent().minus(before).per(time.Since(began))
	if err := f.start(flush); err != nil { // its replacement is there before one goes
		return steady, usage{}, f, err
	}
	rest(ctx, 10*time.Second)
	before, began = f.spent(), time.Now()
	if err := f.close(ctx, 0); err != nil {
		return steady, usage{}, f, err
	}
	if err := f.all(ctx, n); err != nil {
		return steady, usage{}, f, err
	}
	took := time.Since(began)
	redeploy = f.spent().minus(before)
	quiet := usage{steady.requests * took.Seconds(), steady.reads * took.Seconds(), steady.writes * took.Seconds()}
	return steady, redeploy.minus(quiet), f, nil
}

// all waits until everything is held.
func (f *fleet) all(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := until(ctx, func() bool { return f.held() == n }); err != nil {
		return fmt.Errorf("%d of %d are held: %w%s", f.held(), n, err, f.left())
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// each is one heart-beat per connection, as lock clients and the KCL do it: each row is written every interval, if it is
// still its owner's.
func each(ctx context.Context, client *awsdynamodb.Client, n int, every, long time.Duration) (usage, error) {
	table := fmt.Sprintf("each%d", n)
	if _, err := dynamodb.Create(ctx, client, table, dynamodb.CreateOptions{}); err != nil {
		return usage{}, err
	}
	var mu sync.Mutex
	var u usage
	beat := func(i, round int) error {
		out, err := client.UpdateItem(ctx, &awsdynamodb.UpdateItemInput{
			TableName: aws.String(table), Key: map[string]types.AttributeValue{"Pk": &types.AttributeValueMemberS{Value: fmt.Sprintf("call-%05d", i)}},
			UpdateExpression: aws.String("SET beat = :n, holder = :o"), ConditionExpression: aws.String("attribute_not_exists(holder) OR holder = :o"),
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":n": &types.AttributeValueMemberN{Value: strconv.Itoa(round)}, ":o": &types.AttributeValueMemberS{Value: "w1"},
			},
			ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		u.requests++
		u.writes += aws.ToFloat64(out.ConsumedCapacity.CapacityUnits)
		return nil
	}
	rounds := max(int(long/every), 1)
	for round := range rounds {
		began := time.Now()
		slots := make(chan struct{}, 32)
		var wg sync.WaitGroup
		var failed error
		for i := range n {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if err := beat(i, round); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if failed != nil {
			return usage{}, failed
		}
		rest(ctx, every-time.Since(began))
	}
	return u.per(time.Duration(rounds) * every), nil
}

func printMethods(f *fleet) {
	all := f.methods()
	for _, op := range slices.Sorted(maps.Keys(all)) {
		c := all[op]
		fmt.Printf("    %-10s %7d requests %9.1f read units %9.1f write units\n", op, c.Requests, c.ReadUnits, c.WriteUnits)
	}
}
