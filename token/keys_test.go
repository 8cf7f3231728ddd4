package token_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/token"
)

const openChild = "USHER_TEST_OPEN_KEYS" // names the key folder that a child process is to open

func TestMain(m *testing.M) {
	if dir := os.Getenv(openChild); dir != "" {
		k, err := token.Open(dir)
		if err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString(k.Export())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t testing.TB, dir string, opts ...token.Option) *token.Keys {
	t.Helper()
	k, err := token.Open(dir, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func keyDir(t testing.TB) string { return filepath.Join(t.TempDir(), "keys") }

func TestOpenMakesPrivateFolderOnce(t *testing.T) {
	dir := keyDir(t)
	first := open(t, dir)
	for path, want := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, "usher.keys"): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", filepath.Base(path), got, want)
		}
	}
	if again := open(t, dir); again.Export() != first.Export() {
		t.Error("opening the folder again gave other keys")
	}
}

func TestOpenRefusesWhatOthersCanRead(t *testing.T) {
	for _, c := range []struct{ file, mode, mend string }{
		{"", "0755", "chmod 700"}, {"", "0710", "chmod 700"},
		{"usher.keys", "0644", "chmod 600"}, {"usher.keys", "0620", "chmod 600"},
	} {
		t.Run(c.file+c.mode, func(t *testing.T) {
			dir := keyDir(t)
			k := open(t, dir)
			path := filepath.Join(dir, c.file)
			mode := map[string]fs.FileMode{"0755": 0o755, "0710": 0o710, "0644": 0o644, "0620": 0o620}[c.mode]
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			_, err := token.Open(dir)
			var perm *token.PermissionError
			if !errors.As(err, &perm) {
				t.Fatalf("got %v, want a PermissionError", err)
			}
			for _, part := range []string{path, c.mode, c.mend} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if c.file != "" && k.Reload() == nil {
				t.Error("Reload read a file that others can read")
			}
		})
	}
}

func TestProcessesOpeningAtOnceAgree(t *testing.T) {
	dir := keyDir(t)
	const processes = 6
	texts := make([]string, processes)
	var wg sync.WaitGroup
	for i := range texts {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), openChild+"="+dir)
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("child: %v", err)
			}
			texts[i] = string(out)
		})
	}
	wg.Wait()
	want := open(t, dir).Export()
	for i, text := range texts {
		if text != want {
			t.Errorf("process %d has other keys", i)
		}
	}
}

func TestGoroutinesRotatingAtOnceRotateOnce(t *testing.T) {
	dir, now := keyDir(t), time.Now()
	var nodes []*token.Keys
	for range 8 {
		nodes = append(nodes, open(t, dir))
	}
	var fresh, total sync.Map
	var wg sync.WaitGroup
	for i, k := range nodes {
		wg.Go(func() {
			r, err := k.Rotate(now)
			if err != nil {
				t.Error(err)
			}
			total.Store(r.KeyID, true)
			if !r.Already {
				fresh.Store(i, true)
			}
		})
	}
	wg.Wait()
	if n := size(&fresh); n != 1 {
		t.Errorf("%d of 8 rotations took place, want 1", n)
	}
	if n := size(&total); n != 1 {
		t.Errorf("the reports name %d different keys, want 1", n)
	}
}

func size(m *sync.Map) (n int) {
	m.Range(func(any, any) bool { n++; return true })
	return n
}

func TestDamagedFileIsRefusedAndKept(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"cut short":         func(s string) string { return s[:len(s)/2] },
		"one letter":        func(s string) string { return s[:len(s)/2] + flip(s[len(s)/2]) + s[len(s)/2+1:] },
		"empty":             func(string) string { return "" },
		"not ours":          func(string) string { return "hello" },
		"of another layout": func(s string) string { return strings.Replace(s, "usher-keys-1.", "usher-keys-9.", 1) },
		"huge":              func(s string) string { return s + strings.Repeat("A", 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := keyDir(t)
			k := open(t, dir)
			secret := k.SealTicket(token.Ticket{Room: "premiere", Seq: 1})
			path := filepath.Join(dir, "usher.keys")
			bad := damage(k.Export())
			if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := token.Open(dir)
			var format *token.FormatError
			if !errors.As(err, &format) {
				t.Fatalf("got %v, want a FormatError", err)
			}
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%q does not name the file", err)
			}
			if len(bad) > 40 && strings.Contains(err.Error(), bad[20:40]) {
				t.Error("the error quotes the keys")
			}
			if after, _ := os.ReadFile(path); string(after) != bad {
				t.Error("the damaged file was changed")
			}
			if k.Reload() == nil {
				t.Error("Reload took a damaged file")
			}
			if _, err := k.Rotate(time.Now()); err == nil {
				t.Error("Rotate wrote over a damaged file")
			}
			if _, err := k.OpenTicket("premiere", secret); err != nil {
				t.Errorf("the running process lost its keys: %v", err)
			}
		})
	}
}

func flip(c byte) string {
	if c == 'A' {
		return "B"
	}
	return "A"
}

func TestNoChangedLetterGivesOtherKeys(t *testing.T) {
	k := open(t, keyDir(t))
	text, secret := k.Export(), k.SealTicket(token.Ticket{Room: "premiere"})
	for i := range text {
		changed, err := token.FromEnv(text[:i] + flip(text[i]) + text[i+1:])
		if err != nil {
			continue
		}
		// Only a time may have changed; every key is what it was.
		_, err = changed.OpenTicket("premiere", secret)
		if err != nil || changed.RequestHash("premiere", "x") != k.RequestHash("premiere", "x") || names(changed) != names(k) {
			t.Fatalf("a text with letter %d changed gives other keys", i)
		}
	}
}

func names(k *token.Keys) (s string) {
	for _, key := range k.List() {
		s += key.Kind + key.ID + " "
	}
	return s
}

func TestFileGoneWhileRunning(t *testing.T) {
	dir := keyDir(t)
	k := open(t, dir)
	if err := os.Remove(filepath.Join(dir, "usher.keys")); err != nil {
		t.Fatal(err)
	}
	if err := k.Reload(); err == nil || !strings.Contains(err.Error(), "put them back") {
		t.Errorf("Reload says %v", err)
	}
	if _, err := k.Rotate(time.Now()); err == nil {
		t.Error("Rotate went on without the file")
	}
	if _, err := k.OpenTicket("premiere", k.SealTicket(token.Ticket{Room: "premiere"})); err != nil {
		t.Error(err)
	}
}

func TestLeftoversOfACrashAreSwept(t *testing.T) {
	dir := keyDir(t)
	k := open(t, dir)
	left := filepath.Join(dir, ".usher.keys.123")
	if err := os.WriteFile(left, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Rotate(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a half-written key file stayed")
	}
}

func TestUnusableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file, filepath.Join(file, "keys")} {
		if _, err := token.Open(dir); err == nil {
			t.Errorf("Open(%q) made keys", dir)
		}
	}
}

func TestTextForm(t *testing.T) {
	dir := keyDir(t)
	k := open(t, dir)
	env, err := token.FromEnv(" " + k.Export() + "\n")
	if err != nil {
		t.Fatal(err)
	}
	id := env.NewID()
	secret := env.SealTicket(token.Ticket{Room: "premiere", ID: id, Seq: 7})
	if got, err := k.OpenTicket("premiere", secret); err != nil || got.ID != id {
		t.Errorf("a ticket made from the text: %v, %v", got, err)
	}
	if env.RequestHash("premiere", "abc") != k.RequestHash("premiere", "abc") {
		t.Error("the text gives other request hashes")
	}
	if _, err := env.Rotate(time.Now()); !errors.Is(err, token.ErrReadOnly) {
		t.Errorf("Rotate gave %v, want ErrReadOnly", err)
	}
	if env.Reload() != nil {
		t.Error("there is nothing to reload, and that is no error")
	}

	now := time.Now()
	next, report, err := token.RotateText(k.Export(), now)
	if err != nil || report.Already || report.SignsAt.Before(now.Add(token.Lead)) || report.SignsAt.After(now.Add(token.Lead+time.Second)) {
		t.Fatalf("RotateText: %+v, %v", report, err)
	}
	rotated, err := token.FromEnv(next)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rotated.OpenTicket("premiere", secret); err != nil {
		t.Errorf("the rotated text refuses an old ticket: %v", err)
	}
	if same, report, err := token.RotateText(next, now.Add(time.Minute)); err != nil || !report.Already || same != next {
		t.Errorf("a second rotation within the lead changed the text: %+v, %v", report, err)
	}
	for _, bad := range []string{"", "x", next[:30], next + "A"} {
		if _, err := token.FromEnv(bad); err == nil {
			t.Errorf("FromEnv took %d bytes of nonsense", len(bad))
		}
		if _, _, err := token.RotateText(bad, now); err == nil {
			t.Errorf("RotateText took %d bytes of nonsense", len(bad))
		}
	}
}

// memoryStore is a shared store, as Redis would be, that can be made to fail.
type memoryStore struct {
	mu     sync.Mutex
	text   string
	broken error
	secret string // must show up in no error
}

func (m *memoryStore) Load(context.Context) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text, m.broken
}

func (m *memoryStore) Swap(_ context.Context, prev, next string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil || m.text != prev {
		return false, m.broken
	}
	m.text = next
	return true, nil
}

func TestSharedStore(t *testing.T) {
	store := &memoryStore{secret: "hunter2"}
	var wg sync.WaitGroup
	nodes := make([]*token.Keys, 8)
	for i := range nodes {
		wg.Go(func() {
			k, err := token.OpenStore(t.Context(), store)
			if err != nil {
				t.Error(err)
			}
			nodes[i] = k
		})
	}
	wg.Wait()
	for _, k := range nodes {
		if k.Export() != nodes[0].Export() {
			t.Fatal("nodes that started at once have different keys")
		}
	}

	store.broken = errors.New("store is away")
	if _, err := nodes[0].Rotate(time.Now()); err == nil {
		t.Error("Rotate claimed success while the store was away")
	}
	if nodes[0].Reload() == nil {
		t.Error("Reload claimed success while the store was away")
	}
	if _, err := token.OpenStore(t.Context(), store); err == nil {
		t.Error("OpenStore made keys while the store was away")
	}
	store.broken, store.text = nil, "damaged"
	if err := nodes[0].Reload(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Reload of damaged text: %v", err)
	}
}

func TestWatchSeesARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		a, err := token.OpenStore(t.Context(), store)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := token.OpenStore(t.Context(), store)
		ctx, stop := context.WithCancel(t.Context())
		var failures int
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.Watch(ctx, time.Minute, func(error) { failures++ })
		}()
		if _, err := a.Rotate(time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second) // the bubble's clock
		synctest.Wait()
		if a.Export() != b.Export() {
			t.Error("the other node does not know the new key after a minute")
		}
		store.mu.Lock()
		store.broken = errors.New("away")
		store.mu.Unlock()
		time.Sleep(3 * time.Minute)
		stop()
		<-done
		if failures != 3 {
			t.Errorf("%d failures reported, want 3", failures)
		}
	})
}
