package nginx_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ushergo/usher/examples/internal/fronttest"
)

func TestNginx(t *testing.T) {
	nginx := fronttest.Program(t, "nginx", "/usr/sbin/nginx") // not on everybody's PATH
	s := fronttest.Start(t)
	s.Front = fronttest.FreeAddress(t)
	dir := s.Config("nginx.conf", map[string]string{
		"listen 127.0.0.1:8000;": "listen " + s.Front + ";", "server 127.0.0.1:8080;": "server " + s.Usher + ";", "server 127.0.0.1:9000;": "server " + s.Origin + ";",
	})
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Serve(exec.Command(nginx, "-p", dir, "-c", "nginx.conf"))
	s.Run()
}
