package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/token"
)

// KeyStore keeps the nodes' signing keys in Redis, so that all nodes have the same without a file. Whoever reads that key
// can make tickets and admissions. It implements token.Store.
//
// Layout: usher:{keys}, a hash: v 1, text. It has no expiry.
type KeyStore struct {
	client rueidis.Client
}

var _ token.Store = (*KeyStore)(nil)

// NewKeyStore makes a store on a client that stays the caller's to close.
func NewKeyStore(client rueidis.Client) *KeyStore { return &KeyStore{client} }

const keyStoreKey = "usher:{keys}"

// String names the place, for errors. It holds no secret.
func (s *KeyStore) String() string { return "Redis, key " + keyStoreKey }

const keyStorePrelude = `
local v = redis.pcall('HGET', KEYS[1], 'v')
if type(v) == 'table' then return redis.error_reply('USHERLAYOUT ' .. KEYS[1] .. ' is a ' .. redis.call('TYPE', KEYS[1]).ok .. ', not ours: rename it, or give usher a Redis of its own') end
if v and v ~= '1' then return redis.error_reply('USHERLAYOUT ' .. KEYS[1] .. ' has layout ' .. v .. ', this version reads 1: start the version that wrote it') end
`

var (
	keyStoreLoad = rueidis.NewLuaScript(keyStorePrelude + `return redis.call('HGET', KEYS[1], 'text') or ''`)
	keyStoreSwap = rueidis.NewLuaScript(keyStorePrelude + `
if (redis.call('HGET', KEYS[1], 'text') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'v', 1, 'text', ARGV[2])
return 1`)
)

// Load implements token.Store.
func (s *KeyStore) Load(ctx context.Context) (string, error) {
	text, err := keyStoreLoad.Exec(ctx, s.client, []string{keyStoreKey}, nil).ToString()
	return text, s.explain("read", err)
}

// Swap implements token.Store.
func (s *KeyStore) Swap(ctx context.Context, prev, next string) (bool, error) {
	n, err := keyStoreSwap.Exec(ctx, s.client, []string{keyStoreKey}, []string{prev, next}).AsInt64()
	return n == 1, s.explain("write", err)
}

func (s *KeyStore) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if _, text, ok := strings.Cut(err.Error(), "USHERLAYOUT "); ok {
		return errors.New("redis: " + text)
	}
	return fmt.Errorf("redis: %s the signing keys in %s: %w", what, keyStoreKey, err)
}
