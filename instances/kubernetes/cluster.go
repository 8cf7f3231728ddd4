package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ushergo/usher/instances"
)

// Options of Open. The zero value works.
type Options struct {
	Logger *slog.Logger // default: discards
	// Config says where the API server is and who asks. Default: the file that
	// KUBECONFIG names, else the service account of the pod that usher runs in.
	Config *rest.Config
	// Namespace of pods for which none is named. Default: usher's own.
	Namespace string
}

// Cluster is one API server. Safe for concurrent use.
type Cluster struct {
	log       *slog.Logger
	client    *rest.RESTClient
	host      string
	namespace string
	timing    timing

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	pods map[pods]*watcher
}

// pods are what is counted together.
type pods struct{ namespace, selector string }

// Open reads how to reach the API server. It asks the server nothing: whether
// it answers, the first count says.
func Open(opts Options) (*Cluster, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Config == nil {
		config, namespace, err := load()
		if err != nil {
			return nil, err
		}
		opts.Config = config
		if opts.Namespace == "" {
			opts.Namespace = namespace
		}
	}
	if opts.Namespace == "" {
		opts.Namespace = metav1.NamespaceDefault
	}
	client, err := newClient(opts.Config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	c := &Cluster{log: opts.Logger, client: client, host: opts.Config.Host, namespace: opts.Namespace, timing: usual(), pods: map[pods]*watcher{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// Close ends every watch. Counts are errors from there on.
func (c *Cluster) Close() {
	c.mu.Lock() // no watch begins from here on
	c.stop()
	c.mu.Unlock()
	c.wg.Wait()
}

const inPod = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// load is client-go's own way, less the user's ~/.kube/config: a server should
// not count in the cluster that somebody last worked on.
func load() (*rest.Config, string, error) {
	if file := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); file != "" {
		loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{Precedence: strings.Split(file, string(os.PathListSeparator))}, nil)
		config, err := loader.ClientConfig()
		if err != nil {
			return nil, "", fmt.Errorf("kubernetes: KUBECONFIG=%s: %w", file, err)
		}
		namespace, _, err := loader.Namespace()
		if err != nil {
			return nil, "", fmt.Errorf("kubernetes: KUBECONFIG=%s: %w", file, err)
		}
		return config, namespace, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, "", errors.New("kubernetes: usher does not run in a pod; run it in one, name a file by KUBECONFIG, or choose another instances.source")
	}
	if err != nil {
		return nil, "", fmt.Errorf("kubernetes: this pod's service account cannot be read: %w; mount it (automountServiceAccountToken: true)", err)
	}
	namespace, err := os.ReadFile(inPod)
	if err != nil {
		return nil, "", fmt.Errorf("kubernetes: this pod does not say its namespace: %w; give instances.namespace", err)
	}
	return config, strings.TrimSpace(string(namespace)), nil
}

// newClient knows pods and nothing else: the usual client set has every kind of
// every group, and trebles the binary.
func newClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config = rest.CopyConfig(config)
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.UserAgent = "usher"
	config.WarningHandler = rest.NoWarnings{}
	config.QPS = -1 // a list and a watch each 10 s: client-go's brake would only delay the first count
	return rest.RESTClientFor(config)
}

// Pods is the source that counts those of a namespace ("": usher's own) with
// these labels. It begins to watch at the first count, and stops when nobody
// has counted for a minute.
func (c *Cluster) Pods(namespace, selector string) (instances.Source, error) {
	if err := CheckSelector(selector); err != nil {
		return nil, err
	}
	if namespace == "" {
		namespace = c.namespace
	}
	if faults := validation.IsDNS1123Label(namespace); len(faults) > 0 {
		return nil, fmt.Errorf("instances.namespace: %q is not a namespace: %s", namespace, strings.Join(faults, "; "))
	}
	what := pods{namespace, selector}
	return instances.Func(func(ctx context.Context) (int64, error) {
		w, err := c.watcher(what)
		if err != nil {
			return 0, err
		}
		return w.count(ctx)
	}), nil
}

// CheckSelector says what is wrong with a label selector, as app=shop,tier!=batch.
func CheckSelector(selector string) error {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return fmt.Errorf("instances.selector: %q: %w; write it like app=shop", selector, err)
	}
	if parsed.Empty() {
		return errors.New("instances.selector: is empty and would count every pod of the namespace; name labels, as app=shop")
	}
	return nil
}

// watcher gives the running watch of what, or begins it.
func (c *Cluster) watcher(what pods) (*watcher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, errors.New("kubernetes: usher is stopping")
	}
	w := c.pods[what]
	if w == nil {
		w = &watcher{cluster: c, what: what, first: make(chan struct{})}
		c.pods[what] = w
		c.wg.Go(func() { w.run(c.ctx) })
	}
	w.asked = time.Now()
	return w, nil
}

// idle says whether nobody counts any more, and then forgets w: the next count
// begins a new watch.
func (c *Cluster) idle(w *watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(w.asked) < c.timing.idle {
		return false
	}
	delete(c.pods, w.what)
	return true
}
