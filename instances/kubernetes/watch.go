package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

const pageOf = 500 // pods in one answer

// timing is how long things may take.
type timing struct {
	list     time.Duration // a page of pods
	watch    time.Duration // how long a watch is asked for, whole seconds; the server then ends it
	silent   time.Duration // how much later than that it is given up
	idle     time.Duration // a watch goes on without a count
	minPause time.Duration // before an API server that failed is asked again; doubles
	maxPause time.Duration
}

func usual() timing {
	return timing{list: 10 * time.Second, watch: 10 * time.Second, silent: 5 * time.Second, idle: time.Minute,
		minPause: 250 * time.Millisecond, maxPause: 4 * time.Second}
}

// watcher keeps the count of one set of pods.
type watcher struct {
	cluster *Cluster
	what    pods
	asked   time.Time // the last count; under cluster.mu

	first chan struct{} // closed when the first list was answered or failed

	mu    sync.Mutex
	begun bool // first is closed
	ready map[string]struct{}
	err   error // why ready is not what there is now
}

// count is what is known; before the first answer it waits for it.
func (w *watcher) count(ctx context.Context) (int64, error) {
	select {
	case <-w.first:
	case <-ctx.Done():
		return 0, fmt.Errorf("kubernetes: the API server at %s has not answered yet: %w", w.cluster.host, context.Cause(ctx))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return int64(len(w.ready)), w.err
}

// run follows the pods until ctx ends or nobody counts them.
func (w *watcher) run(ctx context.Context) {
	t := &w.cluster.timing
	for pause := t.minPause; ; {
		began := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			w.failed(errors.New("kubernetes: usher is stopping"))
			return
		}
		if err == nil {
			return
		}
		if !isExpired(err) && !errors.Is(err, errCut) { // else a new list says what is true
			w.failed(err)
			w.cluster.log.Debug("pods cannot be counted", "namespace", w.what.namespace, "selector", w.what.selector, "err", err)
		}
		if time.Since(began) > t.watch {
			pause = t.minPause
		}
		sleep(ctx, pause/2+rand.N(pause/2))
		pause = min(2*pause, t.maxPause)
		if w.cluster.idle(w) {
			return
		}
	}
}

// errCut is a watch that ended early. client-go gives the same for one that
// never began, because the server hung up: it proves nothing.
var errCut = errors.New("kubernetes: the watch was cut off")

// follow lists the pods and watches them from there. nil: nobody counts any more.
func (w *watcher) follow(ctx context.Context) error {
	version, err := w.list(ctx)
	if err != nil {
		return err
	}
	for !w.cluster.idle(w) {
		began := time.Now()
		if version, err = w.watch(ctx, version); err != nil {
			return err
		}
		if time.Since(began) < w.cluster.timing.watch/2 {
			return errCut
		}
	}
	return nil
}

// list reads every pod and gives the version of the cluster that it saw.
func (w *watcher) list(ctx context.Context) (string, error) {
	ready := map[string]struct{}{}
	for next := ""; ; {
		page, err := w.page(ctx, next)
		if err != nil {
			return "", w.explain("list", err)
		}
		for i := range page.Items {
			if p := &page.Items[i]; isReady(p) {
				ready[p.Name] = struct{}{}
			}
		}
		if next = page.Continue; next == "" {
			w.mu.Lock()
			w.ready = ready
			w.answered(nil)
			w.mu.Unlock()
			return page.ResourceVersion, nil
		}
	}
}

func (w *watcher) page(ctx context.Context, next string) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cluster.timing.list)
	defer cancel()
	var page corev1.PodList
	err := w.cluster.client.Get().Namespace(w.what.namespace).Resource("pods").
		Param("labelSelector", w.what.selector).Param("limit", strconv.Itoa(pageOf)).Param("continue", next).
		MaxRetries(0).Do(ctx).Into(&page)
	return &page, err
}

// watch applies what happens to the pods after version, until the server ends
// the watch as it was asked to, and gives the version that it came to.
func (w *watcher) watch(ctx context.Context, version string) (string, error) {
	t := &w.cluster.timing
	ctx, cancel := context.WithTimeoutCause(ctx, t.watch+t.silent, errors.New("nothing was heard"))
	defer cancel()
	events, err := w.cluster.client.Get().Namespace(w.what.namespace).Resource("pods").
		Param("labelSelector", w.what.selector).Param("watch", "true").Param("resourceVersion", version).
		Param("allowWatchBookmarks", "true").Param("timeoutSeconds", strconv.Itoa(int(t.watch/time.Second))).
		MaxRetries(0).Watch(ctx)
	if err != nil {
		return "", w.explain("watch", err)
	}
	defer events.Stop()
	for {
		select {
		case e, ok := <-events.ResultChan():
			if !ok && ctx.Err() == nil {
				return version, nil
			}
			if !ok {
				return "", w.explain("watch", context.Cause(ctx))
			}
			if e.Type == watch.Error {
				return "", w.explain("watch", apierrors.FromObject(e.Object))
			}
			if p, ok := e.Object.(*corev1.Pod); ok {
				version = p.ResourceVersion
				w.apply(e.Type, p)
			}
		case <-ctx.Done():
			return "", w.explain("watch", context.Cause(ctx))
		}
	}
}

func (w *watcher) apply(what watch.EventType, p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case what == watch.Bookmark:
	case what != watch.Deleted && isReady(p):
		w.ready[p.Name] = struct{}{}
	default: // gone, unready, or its labels no longer fit
		delete(w.ready, p.Name)
	}
}

func (w *watcher) failed(err error) {
	w.mu.Lock()
	w.answered(err)
	w.mu.Unlock()
}

// answered notes whether the count is true. w.mu is held.
func (w *watcher) answered(err error) {
	w.err = err
	if !w.begun {
		w.begun = true
		close(w.first)
	}
}

func isReady(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// explain says what a failure means to who runs usher.
func (w *watcher) explain(verb string, err error) error {
	switch {
	case isExpired(err):
		return err
	case apierrors.IsForbidden(err):
		return fmt.Errorf("kubernetes: usher may not %s pods in namespace %s: its service account lacks the RBAC rule "+
			`{apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]} there; apply deploy/kubernetes/rbac.yaml (%w)`, verb, w.what.namespace, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("kubernetes: the API server at %s does not accept usher's credentials; see that the service account still exists and its token is mounted (%w)", w.cluster.host, err)
	default:
		return fmt.Errorf("kubernetes: the API server at %s does not answer: %w", w.cluster.host, err)
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
