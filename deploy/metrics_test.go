package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// busy runs usher with something of everything, and gives the names of the metrics that it then has.
func busy(t *testing.T) map[string]bool {
	t.Helper()
	dir := t.TempDir()
	n := serve(t, static(t), dir, "", `
public: {listen: "127.0.0.1:0"}
engine: {dir: `+filepath.Join(dir, "data")+`}
rooms:
  - {id: premiere, capacity: {active: 5, per_instance: 1}, session: {max: 1s, idle: 1s, claim: 1s}}
relay:
  - {id: out, from: {rooms: [premiere]}, to: {file: {path: `+filepath.Join(dir, "events.jsonl")+`}}}
`)
	var ticket string
	for range 3 {
		code, body := ask(t, "POST", n.public+"/v1/rooms/premiere/enter", "")
		if code/100 != 2 {
			t.Fatalf("%d %s", code, body)
		}
		_, rest, _ := strings.Cut(body, `"ticket":"`)
		ticket, _, _ = strings.Cut(rest, `"`)
	}
	ctx, hangUp := context.WithCancel(t.Context()) // a visitor who is told, and goes
	stream(ctx, t, n.public+"/v1/rooms/premiere/events", "Authorization", "Bearer "+ticket)
	hangUp()
	service := []string{"Authorization", "Bearer " + adminToken + "-service", "Content-Type", "application/json"}
	if code, body := ask(t, "PUT", n.admin+"/svc/v1/gates/row", `{"permits":1}`, service...); code/100 != 2 {
		t.Fatalf("%d %s", code, body)
	}
	for range 2 { // one is granted, one finds it full
		ask(t, "POST", n.admin+"/svc/v1/gates/row/acquire", `{"lease_ms":60000,"wait_ms":1}`, service...)
	}
	names := map[string]bool{}
	eventually(t, "a session has ended, and all that follows has its metrics", func() bool {
		code, body := ask(t, "GET", n.admin+"/metrics", "", "Authorization", "Bearer "+adminToken)
		if code != 200 {
			t.Fatalf("%d %s", code, body)
		}
		for line := range strings.Lines(body) {
			if name := sample.FindString(line); name != "" {
				names[name] = true
			}
		}
		return names["usher_room_ended_total"] && names["usher_relay_lag_seconds"] && names["usher_push_closed_total"] && names["usher_room_instances_state"]
	})
	return names
}

var (
	sample = regexp.MustCompile(`^[a-z_][a-z0-9_]*`)
	metric = regexp.MustCompile(`\b(?:usher|process|go)_[a-z0-9_]+`)
)

// check looks at each name in an expression.
func check(t *testing.T, have map[string]bool, where, expr string) {
	t.Helper()
	// What stands in quotes is a value of a label.
	for _, name := range metric.FindAllString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expr, `""`), -1) {
		if !have[name] {
			t.Errorf("%s: there is no metric %s", where, name)
		}
	}
}

type rules struct {
	Groups []group `yaml:"groups"`
}

type group struct {
	Name  string `yaml:"name"`
	Rules []rule `yaml:"rules"`
}

type rule struct {
	Alert       string            `yaml:"alert,omitempty"`
	Record      string            `yaml:"record,omitempty"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

func alerts(t *testing.T) rules {
	t.Helper()
	b, err := os.ReadFile("prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var r rules
	if err := yaml.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// expressions are those of the dashboard, by panel.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	d := dashboard(t)
	for _, p := range d.Panels {
		for i, g := range p.Targets {
			out[fmt.Sprintf("%d %s, %d", p.ID, p.Title, i)] = g.Expr
		}
	}
	for _, a := range d.Annotations.List {
		out["annotation "+a.Name] = a.Expr
	}
	return out
}

func TestAlertsAndDashboardUseMetricsThatExist(t *testing.T) {
	have := busy(t)
	seen := 0
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			check(t, have, "alert "+r.Alert, r.Expr)
			seen++
		}
	}
	for where, expr := range expressions(t) {
		check(t, have, "panel "+where, expr)
		seen++
	}
	if seen < 30 {
		t.Errorf("only %d expressions were looked at", seen)
	}
	if t.Failed() {
		var names []string
		for name := range have {
			names = append(names, name)
		}
		sort.Strings(names)
		t.Log(names)
	}
}

// Prometheus itself reads the rules, and raises the alerts that alerts_test.yaml describes.
func TestAlerts(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "prometheus"
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, b)
		}
	}
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks severity, summary or description", r.Alert)
			}
		}
	}
}

// board is what of Grafana's dashboards we look at.
type board struct {
	Title         string
	UID           string
	SchemaVersion int
	Panels        []struct {
		ID         int
		Type       string
		Title      string
		Datasource *struct{ UID string }
		GridPos    struct{ H, W, X, Y int }
		Targets    []struct {
			RefID, Expr string
			Datasource  struct{ UID string }
		}
	}
	Templating struct {
		List []struct{ Name, Type string }
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
}

func dashboard(t *testing.T) board {
	t.Helper()
	b, err := os.ReadFile("grafana/usher.json")
	if err != nil {
		t.Fatal(err)
	}
	var d board
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// Panels have their own ids and their own places, every query its own letter, and Prometheus can read them all.
func TestDashboard(t *testing.T) {
	d := dashboard(t)
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 36 || len(d.Panels) < 20 {
		t.Errorf("%s %s %d, %d panels", d.Title, d.UID, d.SchemaVersion, len(d.Panels))
	}
	ids, cells := map[int]string{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if other := ids[p.ID]; other != "" || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d %q: the id is %q's too", p.ID, p.Title, other)
		}
		ids[p.ID] = p.Title
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s lies outside of the 24 columns: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		letters := map[string]bool{}
		for _, target := range p.Targets {
			if target.Expr == "" || letters[target.RefID] || target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: query %q of %q", p.Title, target.RefID, target.Datasource.UID)
			}
			letters[target.RefID] = true
		}
		if len(letters) == 0 || p.Datasource == nil || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s asks nothing", p.Title)
		}
	}
	names := map[string]string{}
	for _, v := range d.Templating.List {
		names[v.Name] = v.Type
	}
	if names["datasource"] != "datasource" || names["room"] != "query" {
		t.Errorf("variables: %v", names)
	}

	promtool := program(t, "promtool")
	panels := group{Name: "dashboard"}
	for _, expr := range expressions(t) {
		panels.Rules = append(panels.Rules, rule{Record: fmt.Sprintf("panel:%d", len(panels.Rules)), Expr: strings.ReplaceAll(expr, "$room", ".*")})
	}
	b, err := yaml.Marshal(rules{Groups: []group{panels}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
