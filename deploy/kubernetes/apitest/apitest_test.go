package apitest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// One server for all: it takes seconds to start and 300 MB to keep.
func TestKubernetes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Kubernetes API server")
	}
	c := startCluster(t)
	t.Run("manifests are accepted", c.accepted)
	t.Run("rooms follow pods", c.followed)
}

// usher is a running one, as its service account.
type usher struct {
	*process
	admin string
	token string
}

func (c *cluster) usher(t *testing.T) *usher {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "usher")
	build := exec.Command("go", "build", "-o", bin, "./cmd/usher")
	build.Dir = filepath.Join("..", "..", "..")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	for _, o := range manifest(t, "../usher.yaml") {
		if o.Kind == "ServiceAccount" {
			c.apply(t, &o, false)
		}
	}
	var granted struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	b := c.must(t, "POST", "/api/v1/namespaces/usher/serviceaccounts/usher/token", "application/json",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}})
	if err := json.Unmarshal(b, &granted); err != nil || granted.Status.Token == "" {
		t.Fatalf("%v %s", err, b)
	}
	kubeconfig, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": c.url, "certificate-authority-data": base64.StdEncoding.EncodeToString(c.ca)}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": granted.Status.Token}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u", "namespace": "usher"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"kubeconfig": string(kubeconfig), "usher.yaml": `
public: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
engine: {dir: ` + filepath.Join(dir, "data") + `}
rooms:
  - id: premiere
    capacity: {active: 1000, per_instance: 10}
    instances: {source: kubernetes, namespace: shop, selector: app=shop, fallback: 7}
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u := &usher{token: "the-admin-token-of-the-api-tests"}
	u.process = run(t, []string{"KUBECONFIG=" + filepath.Join(dir, "kubeconfig"), "USHER_ADMIN_TOKEN=" + u.token}, bin, "serve", "--config", filepath.Join(dir, "usher.yaml"), "--log-format", "json")
	eventually(t, "usher is up", func() (bool, string) {
		for line := range strings.Lines(u.text()) {
			var said struct{ Msg, Admin string }
			if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "usher is up" {
				u.admin = said.Admin
				return true, ""
			}
		}
		return false, u.text()
	})
	return u
}

// limit is the room's, by the admin API.
func (u *usher) limit() (int64, error) {
	req, err := http.NewRequest("GET", u.admin+"/admin/v1/rooms/premiere", nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+u.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var room struct{ Limit *int64 }
	if err := json.NewDecoder(resp.Body).Decode(&room); err != nil || room.Limit == nil {
		return 0, fmt.Errorf("%d: %v", resp.StatusCode, err)
	}
	return *room.Limit, nil
}

const pods = "/api/v1/namespaces/shop/pods"

// pod makes one that nobody has made ready yet.
func (c *cluster) pod(t *testing.T, name, app string) {
	t.Helper()
	c.must(t, "POST", pods, "application/json", map[string]any{"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app": app}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "shop", "image": "shop"}}}})
}

// ready says of a pod what a kubelet would.
func (c *cluster) ready(t *testing.T, name string, ready bool) {
	t.Helper()
	c.must(t, "PATCH", pods+"/"+name+"/status", "application/strategic-merge-patch+json", map[string]any{"status": map[string]any{
		"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": map[bool]string{true: "True", false: "False"}[ready]}}}})
}

func (c *cluster) followed(t *testing.T) {
	u := c.usher(t)
	limit := func(what string, want int64) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			got, err := u.limit()
			return got == want && err == nil, fmt.Sprintf("the limit is %d, want %d (%v)", got, want, err)
		})
	}

	// Nobody has allowed anything: the error names the rule, and the fallback counts.
	eventually(t, "the missing rule is named", func() (bool, string) {
		return has(u.text(), "usher may not list pods in namespace shop", `[\"list\", \"watch\"]`, `User \"system:serviceaccount:usher:usher\" cannot list resource \"pods\"`, "instances.fallback, 7, is used"), u.text()
	})
	limit("the fallback", 70)

	// What the manifest allows is enough.
	rules := manifest(t, "../rbac.yaml")
	for i := range rules {
		c.apply(t, &rules[i], false)
	}
	limit("no pod, no session", 0)
	for _, name := range []string{"a", "b", "c"} {
		c.pod(t, name, "shop")
		c.ready(t, name, true)
	}
	c.pod(t, "d", "shop") // pending
	c.pod(t, "e", "till") // another app
	c.ready(t, "e", true)
	limit("three ready pods", 30)
	c.ready(t, "a", false)
	limit("one no longer ready", 20)
	c.ready(t, "d", true)
	limit("one has become ready", 30)
	c.must(t, "PATCH", pods+"/b", "application/merge-patch+json", map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "other"}}})
	limit("one that the selector no longer names", 20)
	c.must(t, "DELETE", pods+"/c?gracePeriodSeconds=0", "", nil)
	limit("one is gone", 10)

	// usher can count and nothing else.
	for verb, path := range map[string]string{"GET one": pods + "/d", "GET in another namespace": "/api/v1/namespaces/default/pods", "GET secrets": "/api/v1/namespaces/shop/secrets"} {
		c.forbidden(t, verb, path)
	}

	// The right is taken away: within the next watch it is noticed, and the last count holds.
	before := len(u.text())
	c.must(t, "DELETE", rules[1].path(), "", nil)
	eventually(t, "the right is missed", func() (bool, string) {
		text := u.text()[before:]
		return has(text, "namespace shop", "the last count, 1, holds"), text
	})
	limit("the last count", 10)
	c.apply(t, &rules[1], false)
	c.ready(t, "a", true)
	limit("counting again", 20)

	// The API server is gone.
	before = len(u.text())
	c.apiserver.end()
	eventually(t, "the silence is noticed", func() (bool, string) {
		text := u.text()[before:]
		return has(text, "does not answer", "the last count, 2, holds"), text
	})
	limit("the last count", 20)
}

// forbidden asks as usher's service account would.
func (c *cluster) forbidden(t *testing.T, what, path string) {
	t.Helper()
	req, err := http.NewRequest("GET", c.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+masterToken)
	req.Header.Set("Impersonate-User", "system:serviceaccount:usher:usher")
	resp, err := c.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("%s: %d, want 403", what, resp.StatusCode)
	}
}
