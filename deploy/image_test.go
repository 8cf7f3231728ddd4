package deploy_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// The image has nothing but the binary: no libc, no shell, no user of that name.
func TestImageRunsByItself(t *testing.T) {
	bin := static(t)
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary asks for a dynamic loader; an image from scratch has none")
		}
	}
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("it imports %v (%v)", libs, err)
	}
	if b, err := exec.Command(bin, "version").CombinedOutput(); err != nil || len(b) == 0 {
		t.Errorf("version: %v %s", err, b)
	}
	if os.Getuid() != 0 {
		t.Skip("only root may give a program another root folder")
	}
	root := t.TempDir()
	for path := root; len(path) > len(filepath.Clean(os.TempDir())); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil { // the user inside is nobody here
			t.Fatal(err)
		}
	}
	copyOf(t, bin, filepath.Join(root, "usher"), 0o755)
	if err := os.Mkdir(filepath.Join(root, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(root, "data"), 65532, 65532); err != nil {
		t.Fatal(err)
	}
	n := serve(t, bin, root, root, `
public: {listen: "127.0.0.1:0"}
engine: {dir: /data}
rooms: [{id: premiere, capacity: {active: 1}}]
`)
	if code, body := ask(t, "POST", n.public+"/v1/rooms/premiere/enter", ""); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, body := ask(t, "GET", n.admin+"/health/ready", ""); code != 200 {
		t.Errorf("%d %s", code, body)
	}
}

func copyOf(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, mode); err != nil {
		t.Fatal(err)
	}
}

// systemd itself reads the unit.
func TestUnit(t *testing.T) {
	verify := program(t, "systemd-analyze")
	b, err := os.ReadFile("systemd/usher.service")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	unit := filepath.Join(t.TempDir(), "usher.service")
	bin := program(t, "true") // the unit's own path need not exist here
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(text, "/usr/local/bin/usher ", bin+" ")), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(verify, "verify", "--man=no", unit).CombinedOutput(); err != nil || strings.Contains(string(out), "usher.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	stop, err := time.ParseDuration(find(t, text, `(?m)^TimeoutStopSec=(\S+)$`))
	if err != nil || stop < 35*time.Second {
		t.Errorf("TimeoutStopSec %v (%v): node.drain is 30s by default, and the last write takes a moment", stop, err)
	}
}

func find(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("nothing like %s", pattern)
	}
	return m[1]
}

// The Deployment, its ConfigMap and the listeners in it agree, and usher accepts the configuration.
func TestManifestAgreesWithItself(t *testing.T) {
	b, err := os.ReadFile("kubernetes/usher.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	number := func(pattern string) int {
		n, err := strconv.Atoi(find(t, text, pattern))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	grace, pause, drain := number(`terminationGracePeriodSeconds: (\d+)`), number(`preStop: {sleep: {seconds: (\d+)}}`), number(`node: {drain: (\d+)s}`)
	if grace < pause+drain+10 {
		t.Errorf("terminationGracePeriodSeconds %d is less than preStop %d + node.drain %d + 10", grace, pause, drain)
	}
	for what, port := range map[string]int{"public": 8080, "admin": 8081, "keda": 8082} {
		if got := number(what + `: {listen: ":(\d+)"`); got != port {
			t.Errorf("%s listens on %d", what, got)
		}
		if got := number(`name: ` + what + `, containerPort: (\d+)`); got != port {
			t.Errorf("the container's port %s is %d", what, got)
		}
	}
	var conf string
	for _, doc := range strings.Split(text, "\n---\n") {
		var o struct {
			Kind string
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		if o.Kind == "ConfigMap" {
			conf = o.Data["usher.yaml"]
		}
	}
	file := filepath.Join(t.TempDir(), "usher.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(static(t), "validate", file).CombinedOutput(); err != nil {
		t.Errorf("usher validate: %v\n%s\n%s", err, out, conf)
	}
}
