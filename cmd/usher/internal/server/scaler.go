package server

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/ushergo/usher/cmd/usher/internal/keep"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/keda"
)

// scaler is the listener for KEDA.
type scaler struct {
	net.Listener
	cert *certificate
	srv  *keda.Server
}

// openScaler listens, so that a taken port is found before anything is read; nil where none is configured.
func openScaler(ctx context.Context, conf config.Keda) (*scaler, error) {
	if conf.Listen == "" {
		return nil, nil
	}
	cert, err := loadCertificate(conf.TLS, "keda.tls")
	if err != nil {
		return nil, err
	}
	l, err := listen(ctx, conf.Listen, "KEDA", "keda.listen")
	if err != nil {
		return nil, err
	}
	return &scaler{Listener: l, cert: cert}, nil
}

// answer makes the server.
func (k *scaler) answer(rooms keda.Rooms) {
	var opts keda.Options
	if k.cert != nil {
		opts.Credentials = credentials.NewTLS(k.cert.tlsConfig())
	}
	k.srv = keda.New(rooms, opts)
}

func (s *Server) serveScaler() {
	k := s.scaler
	if k == nil {
		return
	}
	k.answer(demands{s})
	s.background.Go(func() {
		if err := k.srv.Serve(k.Listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.failed <- fmt.Errorf("listening on %s ended: %w", k.Addr(), err)
		}
	})
	s.log.Info("KEDA is answered", "listen", k.Addr().String(), "tls", k.cert != nil)
}

// shutdown answers what is under way within ctx.
func (k *scaler) shutdown(ctx context.Context) {
	switch {
	case k == nil:
	case k.srv != nil:
		k.srv.Shutdown(ctx)
	default:
		_ = k.Close()
	}
}

// demands tells KEDA what rooms ask for.
type demands struct{ s *Server }

// Demand implements keda.Rooms.
func (d demands) Demand(_ context.Context, id string) (keda.Demand, error) {
	if err := d.s.rooms.Health(); err != nil {
		return keda.Demand{}, err // what this node last knew may be long past
	}
	a, ok := d.s.front.Analyse(id)
	if !ok {
		return keda.Demand{}, keda.ErrNoRoom
	}
	out := keda.Demand{Waiting: a.Waiting, Active: a.Active, Instances: -1}
	if a.RecommendedInstances != nil {
		out.Instances = *a.RecommendedInstances
	}
	return out, nil
}

// Workers implements keda.Keeper.
func (d demands) Workers(context.Context) (int64, bool, error) { return workers(d.s.keep) }

func workers(k *keep.Keep) (int64, bool, error) {
	if k == nil {
		return 0, false, errors.New("this usher keeps no connections; add keeper: {} to its file")
	}
	a := k.Advice()
	if a.Cap == 0 {
		return 0, false, errors.New("the worker has just begun")
	}
	return int64(a.Recommended), a.Connections > 0, k.Health()
}

// keepDemands tells KEDA what a worker without rooms knows.
type keepDemands struct{ k *keep.Keep }

func (keepDemands) Demand(context.Context, string) (keda.Demand, error) {
	return keda.Demand{}, keda.ErrNoRoom
}
func (d keepDemands) Workers(context.Context) (int64, bool, error) { return workers(d.k) }

// ScalerAddr is the address that KEDA is answered on; empty where none is.
func (s *Server) ScalerAddr() string {
	if s.scaler == nil {
		return ""
	}
	return s.scaler.Addr().String()
}
