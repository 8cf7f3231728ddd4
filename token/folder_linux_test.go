package token_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/token"
)

// children are what this test binary does when TestMain finds openChild with a task in front of the folder.
var children = map[string]func(dir string) error{
	"full":   rotateOnAFullDisk,
	"rotate": rotateForEver,
}

func init() {
	task, dir, ok := strings.Cut(os.Getenv(openChild), ":")
	if child := children[task]; ok && child != nil {
		if err := child(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func inChild(task, dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), openChild+"="+task+":"+dir)
	return cmd
}

// rotateOnAFullDisk lets files grow to 100 bytes and no further, which a program sees as it sees a full disk.
func rotateOnAFullDisk(dir string) error {
	k, err := token.Open(dir)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 100, Max: 100}); err != nil {
		return err
	}
	before := k.Export()
	if _, err := k.Rotate(time.Now()); err == nil {
		return fmt.Errorf("Rotate claims success on a full disk")
	} else if !strings.Contains(err.Error(), "write the keys") {
		return fmt.Errorf("unclear: %w", err)
	}
	if k.Export() != before {
		return fmt.Errorf("keys that could not be stored are in use")
	}
	_, err = k.OpenTicket("r", k.SealTicket(token.Ticket{Room: "r"}))
	return err
}

func TestFullDisk(t *testing.T) {
	dir := keyDir(t)
	before := open(t, dir).Export()
	if out, err := inChild("full", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if open(t, dir).Export() != before {
		t.Error("the stored keys changed")
	}
	left, _ := os.ReadDir(dir)
	for _, f := range left {
		if strings.HasPrefix(f.Name(), ".") {
			t.Errorf("%s was left behind", f.Name())
		}
	}
}

func rotateForEver(dir string) error {
	k, err := token.Open(dir)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for now := time.Now(); ; now = now.Add(2 * token.TicketAge) { // far enough apart that keys do not pile up
		if _, err := k.Rotate(now); err != nil {
			return err
		}
	}
}

func TestKilledWhileRotating(t *testing.T) {
	dir := keyDir(t)
	hash := open(t, dir).RequestHash("premiere", "x")
	for i := range 15 {
		cmd := inChild("rotate", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("child says %q, %v", line, err)
		}
		time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond) // a random moment, not a wait for something
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		k, err := token.Open(dir)
		if err != nil {
			t.Fatalf("after kill %d: %v", i, err)
		}
		if k.RequestHash("premiere", "x") != hash {
			t.Fatalf("after kill %d: other keys", i)
		}
	}
}
