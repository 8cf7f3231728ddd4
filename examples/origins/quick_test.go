package origins

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const quickKeys = "/.usher/.well-known/jwks.json"

// TestBesideQuickMode runs each origin as the README says it, but for the ports: behind usher serve --origin --active.
func TestBesideQuickMode(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "usher")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/usher").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			public := freePort(t)
			origin := p.start(t, "main", "http://"+public+quickKeys)
			for path, want := range map[string]int{"/": 200, "/checkout": 401} {
				if resp, err := http.Get(origin + path); err != nil || resp.StatusCode != want {
					t.Errorf("around usher, GET %s: %v, %v; want %d", path, resp, err, want)
				} else {
					resp.Body.Close()
				}
			}
			run(t, exec.Command(bin, "serve", "--origin", origin, "--active", "600", "--listen", public, "--admin-listen", "127.0.0.1:0",
				"--data", t.TempDir()), nil)
			waitFor(t, "http://"+public+"/.usher/health/ready")
			a := ask(t, "http://"+public, "Accept", "text/html")
			if a.status != 200 || a.body["room"] != "main" || a.body["ticket_id"] == nil {
				t.Errorf("through usher: %d %v", a.status, a.body)
			}
		})
	}
}

// What the programs assume by themselves is what quick mode has.
func TestDefaultsAreQuickMode(t *testing.T) {
	for _, file := range []string{"go/main.go", "express/server.js", "nginx/nginx.conf", "go/README.md", "express/README.md", "nginx/README.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "http://127.0.0.1:8080"+quickKeys) || !strings.Contains(string(text), "main") || strings.Contains(string(text), "premiere") {
			t.Errorf("%s does not speak of the room main and its keys at %s", file, quickKeys)
		}
	}
}
