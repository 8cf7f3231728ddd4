package server_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
)

// An origin that is usher itself is refused: one request would go round until it had taken every place.
func TestOriginThatIsUsherItself(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	for _, listen := range []string{"127.0.0.1:", ":"} {
		for _, host := range []string{"127.0.0.1", "localhost"} {
			c := configure(t, t.TempDir())
			c.Public.Listen = listen + port
			c.Rooms[0].Origin = "http://" + host + ":" + port
			s, err := server.Start(context.Background(), c, slog.New(slog.DiscardHandler))
			if err == nil {
				stop(t, s)
			}
			if err == nil || !strings.Contains(err.Error(), "usher's own public address") {
				t.Errorf("%s%s with origin %s: %v", listen, port, c.Rooms[0].Origin, err)
			}
		}
	}
	c := configure(t, t.TempDir()) // another port of the same machine is another site
	c.Rooms[0].Origin = "http://127.0.0.1:1"
	s, _ := start(t, c)
	next := *c
	next.Rooms = append([]config.Room(nil), c.Rooms...)
	next.Rooms[0].Origin = s.PublicURL()
	if err := s.Reload(context.Background(), &next); err == nil || !strings.Contains(err.Error(), "own public address") {
		t.Errorf("reload: %v", err)
	}
	stop(t, s)
}
