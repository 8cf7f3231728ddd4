package nodetest_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/nodetest"
)

// TestInner is what TestAHang runs: a script that asks, checks, leaves a process behind and never ends.
func TestInner(t *testing.T) {
	script := os.Getenv("USHER_NODETEST")
	if script == "" {
		t.Skip("started by TestAHang")
	}
	nodetest.Run(t, nodetest.Script{Args: []string{"-e", script}, Limit: 5 * time.Second, Wish: func(do string) string { return do + "!" }})
}

func TestAHang(t *testing.T) {
	nodetest.Need(t, false)
	mark := t.TempDir()
	script := `
const {spawn} = require('child_process');
console.log(JSON.stringify({do: 'sing'}));
process.stdin.once('data', (d) => console.log(JSON.stringify({name: 'heard ' + String(d).trim()})));
spawn('sh', ['-c', 'echo $TMPDIR > "$MARK/dir"; sleep 600; true'], {detached: true, stdio: 'inherit'});
process.on('SIGTERM', () => { console.error('I was waiting for Godot'); process.exit(1); });
setInterval(() => {}, 1000);`
	cmd := exec.Command(os.Args[0], "-test.run=^TestInner$", "-test.v")
	cmd.Env = append(os.Environ(), "USHER_NODETEST="+script, "MARK="+mark)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("a hang passed:\n%s", out)
	}
	for _, want := range []string{"--- PASS: TestInner/heard_sing!", "was not done after 5s", "I was waiting for Godot"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	dir, err := os.ReadFile(filepath.Join(mark, "dir"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(string(bytes.TrimSpace(dir))); !os.IsNotExist(err) {
		t.Errorf("its folder was left: %v", err)
	}
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		if b, _ := os.ReadFile(name); bytes.Contains(b, append([]byte("TMPDIR="), bytes.TrimSpace(dir)...)) {
			t.Errorf("a process was left: %s", name)
		}
	}
}
