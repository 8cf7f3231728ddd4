package caddy_test

import (
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/ushergo/usher/examples/internal/fronttest"
)

func TestCaddy(t *testing.T) {
	caddy := fronttest.Program(t, "caddy")
	s := fronttest.Start(t)
	s.Particular = true
	s.Front = fronttest.FreeAddress(t)
	_, port, err := net.SplitHostPort(s.Front)
	if err != nil {
		t.Fatal(err)
	}
	dir := s.Config("Caddyfile", map[string]string{
		"http://tickets.test:8000": "http://tickets.test:" + port, "127.0.0.1:8080": s.Usher, "127.0.0.1:9000": s.Origin,
	})
	cmd := exec.Command(caddy, "run", "--config", "Caddyfile", "--adapter", "caddyfile")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_DATA_HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
	s.Serve(cmd)
	s.Run()
}
