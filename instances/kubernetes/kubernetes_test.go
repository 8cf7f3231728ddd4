package kubernetes_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ushergo/usher/instances"
	"github.com/ushergo/usher/instances/kubernetes"
)

func open(t *testing.T, config *rest.Config) *kubernetes.Cluster {
	t.Helper()
	c, err := kubernetes.Open(kubernetes.Options{Config: config, Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	c.Hasten()
	t.Cleanup(c.Close)
	return c
}

func podsOf(t *testing.T, c *kubernetes.Cluster) instances.Source {
	t.Helper()
	source, err := c.Pods("", "app=shop")
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// await counts until the count is n, or the error says what is wanted.
func await(t *testing.T, source instances.Source, n int64, says string) {
	t.Helper()
	var last any
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		got, err := source.Count(t.Context())
		if err == nil && says == "" && got == n || err != nil && says != "" && strings.Contains(err.Error(), says) {
			return
		}
		last = got
		if err != nil {
			last = err
		}
	}
	t.Fatalf("counted %v, want %d %s", last, n, says)
}

func TestReadyPodsAreFollowed(t *testing.T) {
	s := newAPIServer(t)
	s.set("p1", true)
	s.set("p2", false)
	s.put(pod{name: "p3", phase: "Running", ready: true, leaving: true})
	s.put(pod{name: "p4", phase: "Succeeded", ready: true})
	s.set("p5", true)
	source := podsOf(t, open(t, s.config()))
	if n, err := source.Count(t.Context()); n != 2 || err != nil {
		t.Fatalf("the first count waits for the first list: %d, %v", n, err)
	}
	s.set("p2", true)
	await(t, source, 3, "")
	s.set("p1", false)
	await(t, source, 2, "")
	s.remove("p2")
	await(t, source, 1, "")
	s.put(pod{name: "p5", phase: "Running", ready: true, leaving: true}) // it serves who is inside, and nobody new
	await(t, source, 0, "")
	s.set("p6", true)
	await(t, source, 1, "")
	s.tell(func() {
		if s.lists != 1 {
			t.Errorf("pods were listed %d times, want once: the rest is watched", s.lists)
		}
		for _, q := range s.asked {
			if !strings.Contains(q, "labelSelector=app%3Dshop") {
				t.Errorf("asked without the selector: %s", q)
			}
		}
	})
}

// The server ends watches; the next goes on where the last one ended.
func TestWatchGoesOnWithoutAList(t *testing.T) {
	s := newAPIServer(t)
	s.set("p1", true)
	source := podsOf(t, open(t, s.config()))
	for i, name := range []string{"p2", "p3", "p4"} {
		watches := func() (n int) {
			s.tell(func() {
				for _, q := range s.asked {
					if strings.Contains(q, "watch=true") {
						n++
					}
				}
			})
			return n
		}
		await(t, source, int64(i+1), "")
		before := watches()
		for deadline := time.Now().Add(time.Minute); watches() == before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no further watch")
			}
			source.Count(t.Context()) // or nobody counts, and it stops
		}
		s.set(name, true)
	}
	await(t, source, 4, "")
	s.tell(func() {
		if s.lists != 1 {
			t.Errorf("%d lists, want 1", s.lists)
		}
	})
}

func TestManyPodsComeInPages(t *testing.T) {
	s := newAPIServer(t)
	for _, name := range []string{"p0", "p1", "p2", "p3", "p4", "p5", "p6"} {
		s.set(name, name != "p3")
	}
	s.tell(func() { s.page = 3 })
	await(t, podsOf(t, open(t, s.config())), 6, "")
	s.tell(func() {
		if s.lists != 3 {
			t.Errorf("%d pages, want 3", s.lists)
		}
	})
}

func TestRefusalNamesTheRule(t *testing.T) {
	for _, verb := range []string{"list", "watch"} {
		t.Run(verb, func(t *testing.T) {
			s := newAPIServer(t)
			s.set("p1", true)
			s.tell(func() {
				s.refuse = func(w http.ResponseWriter, r *http.Request) bool {
					if (r.URL.Query().Get("watch") == "true") != (verb == "watch") {
						return false
					}
					status(w, 403, "Forbidden", `pods is forbidden: User "system:serviceaccount:shop:usher" cannot `+verb+` resource "pods" in API group "" in the namespace "shop"`)
					return true
				}
			})
			source := podsOf(t, open(t, s.config()))
			await(t, source, 0, "usher may not "+verb+" pods in namespace shop")
			await(t, source, 0, `{apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}`)
			await(t, source, 0, "system:serviceaccount:shop:usher")
			s.tell(func() { s.refuse = nil })
			await(t, source, 1, "")
		})
	}
}

// A watch from before the server's memory begins anew, without an error to anybody.
func TestExpiredVersionIsListedAgain(t *testing.T) {
	s := newAPIServer(t)
	s.set("p1", true)
	refused := make(chan struct{}, 1)
	s.tell(func() {
		s.refuse = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "true" || r.URL.Query().Get("resourceVersion") != "101" {
				return false
			}
			status(w, 410, "Expired", "too old resource version: 101 (4711)")
			s.set("p2", true) // version 102
			select {
			case refused <- struct{}{}:
			default:
			}
			return true
		}
	})
	source := podsOf(t, open(t, s.config()))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		n, err := source.Count(t.Context())
		if err != nil {
			t.Fatalf("an expired version is nobody's fault: %v", err)
		}
		if n == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the pod that came meanwhile is not counted")
		}
	}
	<-refused
}

// A connection on which nothing comes any more looks like a quiet cluster.
func TestSilentWatchIsAnError(t *testing.T) {
	s := newAPIServer(t)
	s.set("p1", true)
	s.tell(func() { s.mute = true })
	source := podsOf(t, open(t, s.config()))
	await(t, source, 0, "does not answer: nothing was heard")
	s.tell(func() { s.mute = false })
	await(t, source, 1, "")
}

func TestServerThatIsAway(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0") // listens, and answers nobody
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	source := podsOf(t, open(t, &rest.Config{Host: "http://" + dead.Addr().String()}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := source.Count(ctx); err == nil || !strings.Contains(err.Error(), "has not answered yet") {
		t.Errorf("the caller's own deadline bounds the first count: %v", err)
	}

	s := newAPIServer(t)
	s.set("p1", true)
	counter := instances.NewCounter(podsOf(t, open(t, s.config())))
	if r := counter.Count(t.Context(), 9); r != (instances.Reading{Count: 1}) {
		t.Fatalf("first: %+v", r)
	}
	s.tell(func() {
		s.refuse = func(w http.ResponseWriter, r *http.Request) bool { panic(http.ErrAbortHandler) }
	})
	s.CloseClientConnections()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		r := counter.Count(t.Context(), 9)
		if r.State == instances.Held && r.Count == 1 && strings.Contains(r.Err.Error(), s.URL) {
			break
		}
		if r.State == instances.Fallback || time.Now().After(deadline) {
			t.Fatalf("%+v", r)
		}
	}
	s.tell(func() { s.refuse = nil })
	await(t, counterSource(counter), 1, "")
}

func counterSource(c *instances.Counter) instances.Source {
	return instances.Func(func(ctx context.Context) (int64, error) {
		r := c.Count(ctx, 9)
		return r.Count, r.Err
	})
}

// Rooms with the same pods share a watch, which ends when nobody counts them.
func TestWatchIsSharedAndEnds(t *testing.T) {
	s := newAPIServer(t)
	s.set("p1", true)
	c := open(t, s.config())
	a, b := podsOf(t, c), podsOf(t, c)
	await(t, a, 1, "")
	await(t, b, 1, "")
	if n := c.Watches(); n != 1 {
		t.Errorf("%d watches, want 1", n)
	}
	for deadline := time.Now().Add(time.Minute); c.Watches() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody counts, and it goes on")
		}
	}
	await(t, a, 1, "")
	c.Close()
	if _, err := a.Count(t.Context()); err == nil {
		t.Error("counted after Close")
	}
}

func TestSelectors(t *testing.T) {
	c := open(t, &rest.Config{Host: "http://127.0.0.1:1"})
	for _, bad := range []struct{ namespace, selector, says string }{
		{"", "", "would count every pod"},
		{"", "app=", ""},
		{"", "app==shop,tier!=batch", ""},
		{"", "app.kubernetes.io/name in (shop, till)", ""},
		{"", "app=shop=till", "instances.selector"},
		{"", "=shop", "write it like app=shop"},
		{"Shop", "app=shop", "instances.namespace"},
	} {
		_, err := c.Pods(bad.namespace, bad.selector)
		if (err == nil) != (bad.says == "") || err != nil && !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%q %q: %v, want %q", bad.namespace, bad.selector, err, bad.says)
		}
	}
}

func TestOutsideAClusterIsSaid(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := kubernetes.Open(kubernetes.Options{}); err == nil || !strings.Contains(err.Error(), "does not run in a pod") {
		t.Errorf("%v", err)
	}
	t.Setenv("KUBECONFIG", t.TempDir()+"/absent")
	if _, err := kubernetes.Open(kubernetes.Options{}); err == nil || !strings.Contains(err.Error(), "KUBECONFIG=") {
		t.Errorf("%v", err)
	}
}
