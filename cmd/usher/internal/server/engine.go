package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/gate"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
	"github.com/ushergo/usher/web"
)

// engine is where this node's state is kept. Fields are nil until they are opened.
type engine struct {
	rooms     room.Store
	gates     gate.Store
	directory affinity.Store // of sessions
	nodes     *redis.Nodes   // nil: this node is alone

	memory struct {
		rooms *memory.Engine
		gates *memory.Gates
	}
	redis struct {
		client rueidis.Client
		rooms  *redis.Rooms
	}
}

// connect reaches what is shared, if anything is, so that a wrong address or password is told before anything else is
// done.
func (e *engine) connect(ctx context.Context, s *Server) error {
	if s.cfg.Engine.Kind != "redis" {
		return nil
	}
	client, err := redis.Connect(ctx, RedisConfig(s.cfg))
	if err != nil {
		return err
	}
	e.redis.client = client
	for _, what := range redis.Doubts(ctx, client) {
		s.log.Warn(what)
	}
	return nil
}

// RedisConfig is how a node with that configuration reaches Redis.
func RedisConfig(cfg *config.Config) redis.Config {
	c := &cfg.Engine
	return redis.Config{
		Addrs: c.Addrs, Mode: redis.Mode(c.Mode), Username: c.Username, Password: c.Password.Reveal(),
		TLS: c.TLS, TLSCA: c.TLSCA, TLSCert: c.TLSCert, TLSKey: c.TLSKey,
		SentinelMaster: c.SentinelMaster, SentinelUsername: c.SentinelUsername, SentinelPassword: c.SentinelPassword.Reveal(),
		DialTimeout: c.DialTimeout,
	}
}

// open reads or joins what state there is.
func (e *engine) open(ctx context.Context, s *Server, observer *web.Observer) (err error) {
	if e.redis.client != nil {
		return e.openRedis(ctx, s)
	}
	noSync := s.cfg.Engine.Durability == "none"
	e.memory.rooms, err = memory.Open(s.cfg.Engine.Dir, memory.Options{Logger: s.log, NoSync: noSync, OnSync: observer.OnSync})
	if err != nil {
		return err
	}
	e.memory.gates, err = memory.OpenGates(s.cfg.Engine.Dir, memory.GateOptions{Logger: s.log, NoSync: noSync})
	if err != nil {
		return err
	}
	// The directory of sessions lives as long as the node; owners hear of a restart and close their sessions.
	e.rooms, e.gates, e.directory = e.memory.rooms, e.memory.gates, memory.NewDirectory(nil)
	return nil
}

func (e *engine) openRedis(ctx context.Context, s *Server) (err error) {
	client := e.redis.client
	e.nodes, err = redis.JoinNodes(ctx, client, redis.NodesOptions{Self: s.describe, OnDrain: s.drainAsked, Logger: s.log})
	if err != nil {
		return err
	}
	e.redis.rooms, err = redis.NewRooms(ctx, client, redis.RoomOptions{Logger: s.log, Owns: e.nodes.Owns, FailoverPause: failoverPause(s.cfg), WaitReplicas: s.cfg.Engine.WaitReplicas})
	if err != nil {
		return err
	}
	gates, err := redis.NewGates(ctx, client, redis.GateOptions{})
	if err != nil {
		return err
	}
	e.rooms, e.gates, e.directory = e.redis.rooms, gates, redis.NewDirectory(client)
	return nil
}

// failoverPause is the store's option: there 0 stands for its default, and none is negative.
func failoverPause(cfg *config.Config) time.Duration {
	if cfg.Engine.FailoverPause == 0 {
		return -1
	}
	return cfg.Engine.FailoverPause
}

// leave takes this node off the list of nodes; what it leads, others lead at once.
func (e *engine) leave() error {
	if e.nodes == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := e.nodes.Leave(ctx)
	e.nodes = nil
	return err
}

// close comes after all who use it have stopped.
func (e *engine) close() error {
	var errs []error
	closing := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("closing %s: %w", what, err))
		}
	}
	if e.redis.rooms != nil {
		closing("the engine", e.redis.rooms.Close())
	}
	closing("the nodes' list", e.leave())
	if e.redis.client != nil {
		e.redis.client.Close()
	}
	if e.memory.gates != nil {
		closing("the gates", e.memory.gates.Close())
	}
	if e.memory.rooms != nil {
		closing("the engine", e.memory.rooms.Close())
	}
	return errors.Join(errs...)
}

// place says where the state is, for the log.
func place(cfg *config.Config) []any {
	if cfg.Engine.Kind == "redis" {
		return []any{"redis", strings.Join(cfg.Engine.Addrs, ","), "mode", cfg.Engine.Mode}
	}
	return []any{"data", cfg.Engine.Dir}
}

// openKeys opens the signing keys, which only Redis shares by itself.
func (e *engine) openKeys(ctx context.Context, cfg *config.Config) (*token.Keys, error) {
	switch {
	case !cfg.Keys.Inline.Empty():
		keys, err := token.FromEnv(cfg.Keys.Inline.Reveal())
		if err != nil {
			return nil, fmt.Errorf("USHER_KEYS: %w", err)
		}
		return keys, nil
	case e.redis.client != nil && cfg.Keys.Dir == "":
		return token.OpenStore(ctx, redis.NewKeyStore(e.redis.client))
	}
	return token.Open(KeyFolder(cfg))
}
