package apitest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// object is one document of a manifest.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	text []byte
}

func manifest(t *testing.T, path string) []object {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []object
	for _, doc := range bytes.Split(b, []byte("\n---\n")) {
		var o object
		if err := yaml.Unmarshal(doc, &o); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if o.Kind == "" {
			t.Fatalf("%s: a document without a kind:\n%s", path, doc)
		}
		o.text = doc
		list = append(list, o)
	}
	return list
}

// path is where the API server keeps it.
func (o *object) path() string {
	plural := map[string]string{
		"Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "ConfigMap": "configmaps", "Service": "services", "Deployment": "deployments",
		"PodDisruptionBudget": "poddisruptionbudgets", "NetworkPolicy": "networkpolicies", "Role": "roles", "RoleBinding": "rolebindings",
		"CustomResourceDefinition": "customresourcedefinitions", "ScaledObject": "scaledobjects",
	}[o.Kind]
	base := "/apis/" + o.APIVersion
	if o.APIVersion == "v1" {
		base = "/api/v1"
	}
	if o.Metadata.Namespace != "" {
		base += "/namespaces/" + o.Metadata.Namespace
	}
	return base + "/" + plural + "/" + o.Metadata.Name
}

// apply is kubectl apply --server-side --validate=strict, with --dry-run=server where dry is set.
func (c *cluster) apply(t *testing.T, o *object, dry bool) {
	t.Helper()
	query := "?fieldManager=usher-tests&fieldValidation=Strict"
	if dry {
		query += "&dryRun=All"
	}
	if code, b := c.do("PATCH", o.path()+query, "application/apply-patch+yaml", o.text); code/100 != 2 {
		t.Errorf("%s %s: %d %s", o.Kind, o.Metadata.Name, code, b)
	}
}

// keda is the folder of KEDA's module, at the version that kedatest uses.
func keda(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/kedacore/keda/v2")
	cmd.Dir = filepath.Join("..", "kedatest")
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(b, &module); err != nil || module.Dir == "" {
		t.Fatalf("%v: %s", err, b)
	}
	return module.Dir
}

// accepted gives every manifest to the API server as a dry run, in an order in which what they need is there.
func (c *cluster) accepted(t *testing.T) {
	for _, name := range []string{"usher", "shop"} {
		c.apply(t, &object{APIVersion: "v1", Kind: "Namespace", Metadata: meta(name), text: []byte("{apiVersion: v1, kind: Namespace, metadata: {name: " + name + "}}")}, false)
	}
	for _, path := range []string{"../usher.yaml", "../rbac.yaml"} {
		for _, o := range manifest(t, path) {
			c.apply(t, &o, true)
			if o.Kind == "Deployment" {
				c.restricted(t, &o)
			}
		}
	}
	crd := manifest(t, filepath.Join(keda(t), "config", "crd", "bases", "keda.sh_scaledobjects.yaml"))
	for i := range crd {
		c.apply(t, &crd[i], false)
	}
	eventually(t, "KEDA's resource is served", func() (bool, string) {
		code, b := c.do("GET", "/apis/keda.sh/v1alpha1/namespaces/shop/scaledobjects", "", nil)
		return code == 200, string(b)
	})
	for _, o := range manifest(t, "../scaledobject.yaml") {
		c.apply(t, &o, true)
		// What is not in KEDA's schema is refused: the acceptance above says something.
		wrong := o
		wrong.text = bytes.ReplaceAll(o.text, []byte("scaleTargetRef: {name:"), []byte("scaleTargetRef: {nameless:"))
		if code, b := c.do("PATCH", o.path()+"?fieldManager=usher-tests&fieldValidation=Strict&dryRun=All", "application/apply-patch+yaml", wrong.text); code/100 == 2 {
			t.Errorf("a ScaledObject without a target's name is accepted: %s", b)
		}
	}
}

func meta(name string) (m struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}) {
	m.Name = name
	return m
}

// restricted makes a pod of the deployment's template in a namespace that enforces what the manifest's does: for
// deployments the API server only warns.
func (c *cluster) restricted(t *testing.T, deployment *object) {
	t.Helper()
	c.must(t, "PATCH", "/api/v1/namespaces/usher", "application/merge-patch+json",
		map[string]any{"metadata": map[string]any{"labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}}})
	var d struct {
		Spec struct {
			Template struct {
				Spec map[string]any `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(deployment.text, &d); err != nil {
		t.Fatal(err)
	}
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "usher"}, "spec": d.Spec.Template.Spec}
	const at = "/api/v1/namespaces/usher/pods?dryRun=All&fieldValidation=Strict"
	c.must(t, "POST", at, "application/json", pod)
	delete(d.Spec.Template.Spec, "securityContext")
	b, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	if code, b := c.do("POST", at, "application/json", b); code != 403 {
		t.Errorf("the namespace's policy is not enforced: %d %s", code, b)
	}
}
