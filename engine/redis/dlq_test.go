package redis_test

import (
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
)

func dlqClient(t *testing.T, s *redistest.Server) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func TestDeadLetters(t *testing.T) {
	server := redistest.Start(t)
	relaytest.DeadLetters(t, func(t *testing.T) relay.DeadLetters {
		client := dlqClient(t, server)
		if err := client.Do(t.Context(), client.B().Flushall().Build()).Error(); err != nil {
			t.Fatal(err)
		}
		return redis.NewDeadLetters(client)
	}, relaytest.DeadAbilities{
		Restart: func(t *testing.T, _ relay.DeadLetters) relay.DeadLetters {
			return redis.NewDeadLetters(dlqClient(t, server))
		}, // another process
	})
}

func TestDeadLettersOfAnotherLayout(t *testing.T) {
	client := dlqClient(t, redistest.Start(t))
	d := redis.NewDeadLetters(client)
	if err := client.Do(t.Context(), client.B().Hset().Key("usher:dlq:{a}").FieldValue().FieldValue("v", "2").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if err := d.Put(t.Context(), relaytest.Letter("a", 1), relay.DeadBounds{}); err == nil || !strings.Contains(err.Error(), "usher:dlq:{a}") {
		t.Fatal(err)
	}
}
