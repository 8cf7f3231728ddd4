package server

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/ushergo/usher/config"
)

// Reload applies cfg, which must be valid, to the rooms, gates, routes and certificates
// of the running server. A room that the file says nothing new about is not touched,
// so that a change made by the admin API stands. Rooms that have gone from the
// file stay too, and are named in the log. Nobody is dropped.
//
// All rooms are tried; the error joins what failed. What takes a restart is
// logged.
func (s *Server) Reload(ctx context.Context, cfg *config.Config) error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	var errs []error
	for i := range cfg.Rooms {
		if err := s.applyRoom(ctx, &cfg.Rooms[i]); err != nil {
			errs = append(errs, err)
		}
	}
	for _, old := range s.cfg.Rooms {
		if !slices.ContainsFunc(cfg.Rooms, func(r config.Room) bool { return r.ID == old.ID }) {
			s.log.Warn("a room has gone from the file and stays, since people may be in it; delete it by DELETE on the admin API",
				"room", old.ID, "path", "/admin/v1/rooms/"+old.ID)
		}
	}
	for _, c := range []struct {
		l    *listener
		conf config.TLS
	}{{s.public, cfg.Public.TLS}, {s.admin, cfg.Admin.TLS}} {
		if c.l.cert != nil && c.conf.On() {
			if err := c.l.cert.reload(c.conf); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if s.scaler != nil && s.scaler.cert != nil && cfg.Keda.TLS.On() {
		if err := s.scaler.cert.reload(cfg.Keda.TLS); err != nil {
			errs = append(errs, err)
		}
	}
	if err := s.gates.front.apply(cfg.Gates); err != nil {
		errs = append(errs, err)
	}
	if err := s.shared.apply(cfg.Rooms); err != nil {
		errs = append(errs, err)
	}
	if err := s.routes.Apply(cfg.Routes); err != nil {
		errs = append(errs, fmt.Errorf("the routes in use stay: %w", err))
	}
	if err := s.keys.Reload(); err != nil {
		errs = append(errs, fmt.Errorf("the keys in use stay: %w", err))
	}
	for _, path := range needRestart(s.cfg, cfg) {
		s.log.Warn("changed in the file, and takes a restart", "key", path)
	}
	s.cfg.Rooms = cfg.Rooms
	return errors.Join(errs...)
}

// needRestart names the sections that differ and that Reload does not apply.
func needRestart(old, cfg *config.Config) []string {
	var out []string
	differ := func(path string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			out = append(out, path)
		}
	}
	differ("public.listen", old.Public.Listen, cfg.Public.Listen)
	differ("public.url", old.Public.URL, cfg.Public.URL)
	differ("public.tls", old.Public.TLS.On(), cfg.Public.TLS.On())
	differ("admin.listen", old.Admin.Listen, cfg.Admin.Listen)
	differ("admin.token", old.Admin.Token, cfg.Admin.Token)
	differ("admin.tls", old.Admin.TLS.On(), cfg.Admin.TLS.On())
	differ("keda.listen", old.Keda.Listen, cfg.Keda.Listen)
	differ("keda.tls", old.Keda.TLS.On(), cfg.Keda.TLS.On())
	differ("service", old.Service, cfg.Service)
	differ("engine", old.Engine, cfg.Engine)
	differ("keys", old.Keys, cfg.Keys)
	differ("node", old.Node, cfg.Node)
	differ("trusted_proxies", old.TrustedProxies, cfg.TrustedProxies)
	differ("egress", old.Egress, cfg.Egress)
	differ("keeper", old.Keeper, cfg.Keeper)
	differ("relay", old.Relay, cfg.Relay)
	return out
}
