package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
)

// statusWatch follows the pods' statuses in the API server and reports each that goes back.
type statusWatch struct {
	api    *client.Client
	report *report
	mu     sync.Mutex
	last   map[types.UID]*corev1.Pod
	cancel context.CancelFunc
	done   sync.WaitGroup
	// updates counts the events of all watches.
	updates atomic.Int64
}

func watchStatuses(api *client.Client, r *report) *statusWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &statusWatch{api: api, report: r, last: map[types.UID]*corev1.Pod{}, cancel: cancel}
	w.done.Go(func() {
		for ctx.Err() == nil {
			_ = w.follow(ctx) // the API server's trouble is the test's own doing
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	return w
}

func (w *statusWatch) stop() {
	w.cancel()
	w.done.Wait()
}

// reset forgets all statuses, because the API server is about to go back to earlier ones.
func (w *statusWatch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.last)
}

// follow lists the pods and watches them until something breaks.
func (w *statusWatch) follow(ctx context.Context) error {
	list := &corev1.PodList{}
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := w.api.Core.Get().Namespace(namespace).Resource("pods").Do(bounded).Into(list); err != nil {
		return err
	}
	for i := range list.Items {
		w.see(&list.Items[i])
	}
	minute := int64(60)
	events, err := w.api.Core.Get().Namespace(namespace).Resource("pods").VersionedParams(&metav1.ListOptions{
		Watch:           true,
		ResourceVersion: list.ResourceVersion,
		TimeoutSeconds:  &minute,
	}, client.Parameters).Watch(ctx)
	if err != nil {
		return err
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-events.ResultChan():
			p, isPod := e.Object.(*corev1.Pod)
			if !open || !isPod {
				return fmt.Errorf("the watch has ended")
			}
			w.updates.Add(1)
			w.see(p)
		}
	}
}

// rank orders the phases.
var rank = map[corev1.PodPhase]int{
	"":                  0,
	corev1.PodPending:   0,
	corev1.PodRunning:   1,
	corev1.PodSucceeded: 2,
	corev1.PodFailed:    2,
}

// see compares a pod with what it was. A static pod's mirror may start again; its UID is another then.
func (w *statusWatch) see(p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.last[p.UID]
	w.last[p.UID] = p
	if was == nil {
		return
	}
	if p.Labels["soak"] == "steady" && isReady.holds(was) && !isReady.holds(p) && w.report.mustStayReady() {
		w.report.violate("undisturbed: pod %s became not Ready: %s", p.Name, describe(p))
	}
	old, now := was.Status.Phase, p.Status.Phase
	if rank[now] < rank[old] || rank[old] == 2 && now != old {
		w.report.violate("monotonic: pod %s went from phase %s to %s", p.Name, old, now)
	}
	counts := map[string]int32{}
	for _, c := range append(was.Status.InitContainerStatuses, was.Status.ContainerStatuses...) {
		counts[c.Name] = c.RestartCount
	}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if c.RestartCount < counts[c.Name] {
			w.report.violate("monotonic: restart count of container %s of pod %s went from %d to %d", c.Name, p.Name,
				counts[c.Name], c.RestartCount)
		}
	}
}
