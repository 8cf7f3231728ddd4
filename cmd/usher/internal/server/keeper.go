package server

import (
	"context"
	"errors"
)

// startKeep begins to hold connections, where the file has a keeper: section.
func (s *Server) startKeep() {
	if s.keep == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopKeep, s.keepEnded = cancel, make(chan error, 1)
	go func() { s.keepEnded <- s.keep.Run(ctx, s.cfg.Node.Drain) }()
}

// letGo begins to give connections back.
func (s *Server) letGo() {
	if s.stopKeep != nil {
		s.stopKeep()
	}
}

// closeKeep waits until all are given back, at most for node.drain.
func (s *Server) closeKeep() error {
	if s.keep == nil {
		return nil
	}
	var err error
	if s.letGo(); s.keepEnded != nil {
		err = <-s.keepEnded
	}
	return errors.Join(err, s.keep.Close())
}
