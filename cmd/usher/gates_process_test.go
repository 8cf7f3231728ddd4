package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const (
	processServiceToken = "a-service-token-for-the-process"
	processAdminToken   = "an-admin-token-for-the-process"
)

// svcCall asks the service API and gives status and answer.
func svcCall(t *testing.T, p *process, method, path, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequest(method, p.admin+"/svc/v1/gates/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+processServiceToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	doc := map[string]any{}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return resp.StatusCode, doc
}

// kill -9 of usher keeps limits, and fences grow on; SIGHUP brings gates, and a file with a fault changes nothing; no log
// has a token.
func TestGatesOfAProcess(t *testing.T) {
	quiet(t)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "the site") }))
	defer origin.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "usher.yaml")
	write := func(gates string) {
		t.Helper()
		text := fmt.Sprintf(`
public: {listen: 127.0.0.1:0}
admin: {listen: 127.0.0.1:0}
engine: {dir: %q}
rooms: [{id: main, match: [{path: /premiere}], origin: %q, capacity: {active: 100}}]
%s`, filepath.Join(dir, "data"), origin.URL, gates)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	env := []string{"USHER_SERVICE_TOKENS=" + processServiceToken, "USHER_ADMIN_TOKEN=" + processAdminToken}
	p := startProcess(t, env, "--config", file).up()
	var last float64
	for round := range 3 {
		if status, doc := svcCall(t, p, "PUT", "job:1", fmt.Sprintf(`{"permits":%d}`, round+1)); status != 200 {
			t.Fatal(status, doc)
		}
		status, doc := svcCall(t, p, "POST", "job:1/acquire", `{}`)
		if status != 200 || doc["fence"].(float64) <= last {
			t.Fatalf("fence %v after %v: %d %v", doc["fence"], last, status, doc)
		}
		last = doc["fence"].(float64)
		p.signal(syscall.SIGKILL)
		p.exit()
		http.DefaultClient.CloseIdleConnections()
		if strings.Contains(p.log(), processServiceToken) {
			t.Error("the log holds the token")
		}
		p = startProcess(t, env, "--config", file).up()
		if status, doc := svcCall(t, p, "GET", "job:1", ""); status != 200 || doc["permits"] != float64(round+1) {
			t.Fatalf("after kill -9: %d %v", status, doc)
		}
	}

	write("gates: [{id: closed, match: [{path: /pay}], permits: 1, key: 'header'}]\n")
	p.signal(syscall.SIGHUP)
	if line := p.wait("the file is wrong"); line["key"] != "gates[0].key" || line["mend"] == "" {
		t.Errorf("%v", line)
	}
	p.wait("the file is refused as a whole")
	write("gates: [{id: pay, match: [{path: /pay}], permits: 1}]\n")
	p.signal(syscall.SIGHUP)
	p.wait("the file has been applied")
	if body, status := get(t, p.public+"/pay", map[string]string{}); status != 200 || body != "the site" {
		t.Errorf("behind a gate that is free: %d %.200s", status, body)
	}
	const granted = `usher_gate_wait_seconds_count{outcome="granted"} 1`
	if metrics := asAdmin(t, p.admin+"/metrics", processAdminToken); !strings.Contains(metrics, granted) {
		t.Errorf("the request went by the gate: no %s", granted)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d\n%s", code, p.log())
	}
}
