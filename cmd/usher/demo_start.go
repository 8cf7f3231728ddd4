package main

import (
	"context"
	"sync"
	"time"

	"github.com/ushergo/usher/cmd/usher/internal/demo"
	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
)

// startDemoServer starts the Usher of "usher demo" in this process, exactly as
// serve would with a file that says the same.
func startDemoServer(ctx context.Context, p demo.Plan) (demo.Server, error) {
	cfg := config.Default()
	cfg.Public.Listen, cfg.Admin.Listen = p.Public, p.Admin
	cfg.Admin.Token = config.NewSecret(p.AdminToken)
	cfg.Engine.Dir = p.Dir
	cfg.Node.Drain = 3 * time.Second
	r := config.DefaultRoom()
	r.ID, r.Origin = p.Room, p.Origin
	r.Match = []config.Match{{Path: p.Path}}
	r.Capacity.Active = p.Active
	r.Session.Idle, r.Session.Max, r.Session.Claim = p.Idle, p.Max, p.Claim
	r.Queue.Grace = p.Grace
	cfg.Rooms = []config.Room{r}
	if err := cfg.Validate(); err != nil {
		return nil, asFlags(err)
	}
	s, err := server.Start(ctx, cfg, p.Log, server.Version(buildVersion().Version))
	if err != nil {
		return nil, err
	}
	d := &demoServer{s: s, failed: make(chan error, 1)}
	d.waits.Go(func() {
		if err := s.Wait(); err != nil {
			d.failed <- err
		}
	})
	return d, nil
}

type demoServer struct {
	s      *server.Server
	failed chan error
	waits  sync.WaitGroup
}

func (d *demoServer) Failed() <-chan error { return d.failed }

func (d *demoServer) Close(ctx context.Context) error {
	err := d.s.Shutdown(ctx)
	d.waits.Wait()
	return err
}
