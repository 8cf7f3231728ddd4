package server_test

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
	"github.com/ushergo/usher/config"
)

// What the admin API changed stands over a restart and a reload, and both say so, with the way back.
func TestChangesThatStandAreTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	told := func(j *journal) []string {
		return regexp.MustCompile(`.*a room keeps what was changed.*`).FindAllString(j.String(), -1)
	}
	s, j := start(t, configure(t, dir))
	if got := told(j); len(got) != 0 {
		t.Fatalf("nothing was changed: %q", got)
	}
	set := func(assignments ...string) {
		t.Helper()
		patch, err := config.RoomPatch(assignments)
		if err != nil {
			t.Fatal(err)
		}
		admin, err := adminapi.New(s.AdminURL(), s.AdminToken(), "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Patch(context.Background(), "premiere", patch); err != nil {
			t.Fatal(err)
		}
	}
	set("active=3", "idle=3m")
	if err := s.Reload(context.Background(), configure(t, dir)); err != nil {
		t.Fatal(err)
	}
	const back = "usher rooms set premiere capacity.active=1 session.idle=5m"
	if got := told(j); len(got) != 1 || !strings.Contains(got[0], "capacity.active: 3 runs, configured 1; session.idle: 3m runs, configured 5m") || !strings.Contains(got[0], back) {
		t.Errorf("reload: %q", got)
	}
	stop(t, s)

	s, j = start(t, configure(t, dir))
	if got := told(j); len(got) != 1 || !strings.Contains(got[0], back) {
		t.Errorf("restart: %q", got)
	}
	// The way back is one, and then nothing is said.
	set(strings.Fields(back)[4:]...)
	if err := s.Reload(context.Background(), configure(t, dir)); err != nil {
		t.Fatal(err)
	}
	if got := told(j); len(got) != 1 {
		t.Errorf("after going back: %q", got)
	}
}
