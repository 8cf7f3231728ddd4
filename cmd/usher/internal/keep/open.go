package keep

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/cmd/usher/internal/relays"
	"github.com/ushergo/usher/engine/dynamodb"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/keeper/dynamosink"
	"github.com/ushergo/usher/keeper/relaysink"
	"github.com/ushergo/usher/keeper/sqlsink"
	"github.com/ushergo/usher/lease"
)

func (k *Keep) openStore(ctx context.Context, client rueidis.Client) (lease.Store, error) {
	c := &k.cfg.Keeper
	switch {
	case c.Store == "dynamodb":
		aws, err := dynamodb.Client(ctx, dynamodb.Settings{Region: c.DynamoDB.Region, Endpoint: c.DynamoDB.Endpoint})
		if err != nil {
			return nil, err
		}
		return dynamodb.NewLeases(aws, c.DynamoDB.Table), nil
	case k.cfg.Engine.Kind == "redis":
		return redis.NewLeases(client, c.Space)
	}
	s, err := memory.OpenLeases(k.cfg.Engine.Dir, c.Space, memory.LeaseOptions{Logger: k.log, NoSync: k.cfg.Engine.Durability == "none"})
	if err != nil {
		return nil, err
	}
	k.close = append(k.close, s.Close)
	return s, nil
}

func (k *Keep) openSink(ctx context.Context) (keeper.Sink, error) {
	if c := &k.cfg.Keeper; len(c.To.Kinds()) > 0 {
		s, err := relays.OpenSink(ctx, c.To, k.cfg.Egress.Allow, c.StoreTimeout, os.Stdout)
		if err != nil {
			return nil, err
		}
		k.close = append(k.close, s.Close)
		return relaysink.New(s, 0), nil
	}
	if k.cfg.Keeper.Sink.Empty() { // with Redis the data folder may not be there
		if err := os.MkdirAll(k.cfg.Engine.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("is not given, and the data folder cannot be made for keeper.db: %w; set keeper.sink or engine.dir", err)
		}
	}
	url := k.sinkURL()
	if table, ok := strings.CutPrefix(url, "dynamodb:"); ok {
		c := &k.cfg.Keeper.DynamoDB
		client, err := dynamodb.Client(ctx, dynamodb.Settings{Region: c.Region, Endpoint: c.Endpoint})
		if err != nil {
			return nil, err
		}
		s := dynamosink.New(client, table)
		return s, s.Ready(ctx)
	}
	s, err := sqlsink.Open(ctx, url, k.cfg.Keeper.Lanes)
	if err != nil {
		return nil, err
	}
	k.close = append(k.close, s.Close)
	return s, nil
}

func redacted(url string) string { return sqlsink.Redacted(url) }
