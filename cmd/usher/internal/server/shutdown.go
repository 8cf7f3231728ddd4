package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Shutdown stops gracefully and returns when everything is closed. When ctx
// ends first, connections that are still open are cut; the engine is flushed
// all the same. Called again, it waits for the first call.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopOnce.Do(func() {
		began := time.Now()
		s.leaving.Store(true)
		s.letGo() // connections go to other workers while visitors are drained
		s.log.Info("stopping", "drain", s.cfg.Node.Drain.String())
		// Ready is 503; a balancer that looks every few seconds sends new visitors elsewhere before we stop accepting.
		// Nobody waits where nobody is connected.
		if s.front.Leave() > 0 {
			select {
			case <-time.After(min(time.Duration(s.cfg.Node.Drain)/6, 5*time.Second)):
			case <-ctx.Done():
			}
		}
		var drained sync.WaitGroup
		drained.Go(func() { // ready answers 503, streams are told when to return, each at a moment of its own
			if err := s.front.Drain(ctx); err != nil {
				s.log.Warn("event streams were cut that had not ended in time", "err", err)
			}
		})
		var errs []error
		for _, l := range []*listener{s.public, s.admin} { // admin last: it can be watched, and services give back their permits
			if l == s.admin {
				s.gates.service.Close() // who waits for a permit is answered now, and does not hold up the stop
			}
			if err := l.srv.Shutdown(ctx); err != nil {
				errs = append(errs, fmt.Errorf("%s: connections were cut that did not end in time: %w", l.Addr(), err))
				_ = l.srv.Close()
			}
		}
		s.scaler.shutdown(ctx)
		drained.Wait()
		errs = append(errs, s.down())
		s.stopErr = errors.Join(errs...)
		s.log.Info("stopped", "took", time.Since(began).Round(time.Millisecond).String())
		close(s.done)
	})
	<-s.done
	return s.stopErr
}

// down closes whatever is open, in the reverse order of up. It waits for the
// disk, not for visitors.
func (s *Server) down() error {
	var errs []error
	for _, l := range []*listener{s.public, s.admin} {
		switch {
		case l == nil:
		case l.srv != nil:
			_ = l.srv.Close()
		default:
			_ = l.Close()
		}
	}
	cut, cancel := context.WithCancel(context.Background())
	cancel()
	s.scaler.shutdown(cut)
	if err := s.closeKeep(); err != nil {
		errs = append(errs, err)
	}
	if s.front != nil {
		s.front.Close()
	}
	if s.shared != nil {
		s.shared.close()
	}
	if s.stopBackground != nil {
		s.stopBackground()
	}
	s.background.Wait()
	if s.routes != nil {
		s.routes.Close()
	}
	errs = append(errs, s.relays.close()) // before the engine, which their cursors and letters are kept in
	if s.gates != nil {
		s.gates.close()
	}
	if s.rooms != nil {
		s.rooms.Close()
	}
	if s.pods != nil {
		s.pods.close()
	}
	errs = append(errs, s.engine.close())
	if s.traces != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.traces.Shutdown(ctx); err != nil {
			s.log.Warn("the last traces were not sent", "err", err)
		}
	}
	return errors.Join(errs...)
}
