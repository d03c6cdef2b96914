package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nodelet/nodelet/kube/watch"
	"github.com/nodelet/nodelet/test/testbed"
)

const namespace = "default"

// podLimit is how long one pod may take to start or to be deleted before the run fails.
const podLimit = 3 * time.Minute

// grace is the grace period of all pods, in seconds. On a busy machine a process may get SIGTERM before it handles it,
// and then uses up the whole period. With the default of 30 seconds, a few of these would decide how many pods
// a second a run shows.
const grace = 2

// pod is bound to the node when it is created, so that the scheduler does not count.
func (b *bench) pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			NodeName:                      b.node.Name,
			TerminationGracePeriodSeconds: new(int64(grace)),
			Containers: []corev1.Container{
				{Name: "pause", Image: testbed.PauseImage, ImagePullPolicy: corev1.PullIfNotPresent},
			},
		},
	}
}

// follow tells when each pod of the node was first seen, is Ready and gone. It is a watch.Sink, so that a watch that
// ends is taken up again.
type follow struct {
	mu    sync.Mutex
	seen  map[string]chan time.Time
	ready map[string]chan time.Time
	gone  map[string]chan time.Time
	known map[string]bool
	stop  func()
}

func (b *bench) follow(ctx context.Context) (*follow, error) {
	ctx, stop := context.WithCancel(ctx)
	f := &follow{
		seen:  map[string]chan time.Time{},
		ready: map[string]chan time.Time{},
		gone:  map[string]chan time.Time{},
		known: map[string]bool{},
		stop:  stop,
	}
	synced := make(chan struct{})
	sink := &firstSync{follow: f, synced: synced}
	go watch.Target{Client: b.api.Core, Resource: "pods", Namespace: namespace,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", b.node.Name).String()}.Follow(ctx, sink)
	select {
	case <-synced:
		return f, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// firstSync closes synced when the first list of pods is complete.
type firstSync struct {
	*follow
	synced chan struct{}
	once   sync.Once
}

// Replace receives the state of all pods: a known pod that is not in it is deleted.
func (s *firstSync) Replace(objs []metav1.Object) {
	now, there := time.Now(), map[string]bool{}
	for _, o := range objs {
		there[o.GetName()] = true
		s.Set(o)
	}
	for name := range s.known {
		if !there[name] {
			once(s.channel(s.gone, name), now)
		}
	}
	s.once.Do(func() { close(s.synced) })
}

// Set receives a pod that was added or changed.
func (s *firstSync) Set(o metav1.Object) {
	if !s.known[o.GetName()] {
		s.known[o.GetName()] = true
		once(s.channel(s.seen, o.GetName()), time.Now())
	}
	for _, c := range o.(*corev1.Pod).Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			once(s.channel(s.ready, o.GetName()), time.Now())
		}
	}
}

// Delete receives a deleted pod.
func (s *firstSync) Delete(o metav1.Object) {
	delete(s.known, o.GetName())
	once(s.channel(s.gone, o.GetName()), time.Now())
}

// Trouble ignores an error of the watch, because the watch is retried.
func (s *firstSync) Trouble(error) {}

func once(ch chan time.Time, at time.Time) {
	select {
	case ch <- at:
	default:
	}
}

func (f *follow) channel(in map[string]chan time.Time, name string) chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if in[name] == nil {
		in[name] = make(chan time.Time, 1)
	}
	return in[name]
}

func (f *follow) wait(ctx context.Context, what string, in map[string]chan time.Time, name string) (time.Time, error) {
	select {
	case at := <-f.channel(in, name):
		return at, nil
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case <-time.After(podLimit):
		return time.Time{}, fmt.Errorf("pod %s is not %s after %s", name, what, podLimit)
	}
}

func (b *bench) create(ctx context.Context, pod *corev1.Pod) error {
	return b.api.Core.Post().Namespace(namespace).Resource("pods").Body(pod).Do(ctx).Error()
}

func (b *bench) delete(ctx context.Context, name string) error {
	return b.api.Core.Delete().
		Namespace(namespace).
		Resource("pods").
		Name(name).
		Body(&metav1.DeleteOptions{}).
		Do(ctx).
		Error()
}

// alone is the pause before each pod that is measured by itself: what an agent does for the pod before it, after that
// is gone from the cluster, is over by then. The bare runtime gets the same.
const alone = 1500 * time.Millisecond

// onePod creates one pod, waits until it is Ready, and deletes it.
func (b *bench) onePod(ctx context.Context, name string, took func(ready, gone time.Duration)) error {
	f, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	if err := pause(ctx, alone); err != nil {
		return err
	}
	began := time.Now()
	if err := b.create(ctx, b.pod(name)); err != nil {
		return err
	}
	ready, err := f.wait(ctx, "Ready", f.ready, name)
	if err != nil {
		return err
	}
	if err := pause(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	ended := time.Now()
	if err := b.delete(ctx, name); err != nil {
		return err
	}
	gone, err := f.wait(ctx, "gone", f.gone, name)
	if err == nil && took != nil {
		took(ready.Sub(began), gone.Sub(ended))
	}
	return err
}

// singles measures pods one at a time. beside describes what else runs on the node, or is empty.
func (b *bench) singles(ctx context.Context, side, beside string) error {
	for i := range b.o.single {
		err := b.onePod(ctx, fmt.Sprintf("one-%d", i), func(ready, gone time.Duration) {
			b.note(side, "create to Ready, one at a time"+beside+", ms", ms(ready))
			b.note(side, "delete to gone, one at a time"+beside+", ms", ms(gone))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// manyPods measures n pods at the same time.
func (b *bench) manyPods(ctx context.Context, n int, side string) error {
	f, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	began := time.Now()
	ready, err := b.each(ctx, n, "many", func(name string) (time.Time, error) {
		if err := b.create(ctx, b.pod(name)); err != nil {
			return time.Time{}, err
		}
		return f.wait(ctx, "Ready", f.ready, name)
	})
	if err != nil {
		return err
	}
	b.spread(side, "create to Ready", n, began, ready)
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	began = time.Now()
	gone, err := b.each(ctx, n, "many", func(name string) (time.Time, error) {
		if err := b.delete(ctx, name); err != nil {
			return time.Time{}, err
		}
		return f.wait(ctx, "gone", f.gone, name)
	})
	if err != nil {
		return err
	}
	b.spread(side, "delete to gone", n, began, gone)
	return nil
}

// spread notes the times of a burst and when the last of it was through.
func (b *bench) spread(side, what string, n int, began time.Time, ends []time.Time) {
	var last time.Duration
	for _, at := range ends {
		b.note(side, fmt.Sprintf("%s, %d at once, ms", what, n), ms(at.Sub(began)))
		last = max(last, at.Sub(began))
	}
	b.note(side, fmt.Sprintf("%s, all of %d at once, ms", what, n), ms(last))
}

// each does something for n pods at the same time.
func (b *bench) each(ctx context.Context, n int, prefix string,
	do func(name string) (time.Time, error)) ([]time.Time, error) {
	ends, errs := make([]time.Time, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { ends[i], errs[i] = do(fmt.Sprintf("%s-%d", prefix, i)) })
	}
	all.Wait()
	return ends, errors.Join(errs...)
}

// fillers is how many pods fill starts at a time.
const fillers = 8

// fill starts pods until the node runs n pods, and notes how many a second.
func (b *bench) fill(ctx context.Context, side string, n int) error {
	f, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	began := time.Now()
	var started atomic.Int64
	var all errgroup.Group
	all.SetLimit(fillers)
	for i := range n {
		all.Go(func() error {
			pod := b.pod(fmt.Sprintf("load-%d", i))
			if b.o.probes {
				pod = b.probed(pod.Name)
			}
			if err := b.create(ctx, pod); apierrors.IsAlreadyExists(err) {
				return nil
			} else if err != nil {
				return err
			}
			started.Add(1)
			_, err := f.wait(ctx, "Ready", f.ready, pod.Name)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if started.Load() > 0 {
		b.note(
			side,
			fmt.Sprintf("pods a second, up to %s", b.loadName(n)),
			float64(started.Load())/time.Since(began).Seconds(),
		)
	}
	return nil
}

// deletePods deletes the pods that fill has created.
func (b *bench) deletePods(ctx context.Context) error {
	f, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	_, err = b.each(ctx, b.o.loads[len(b.o.loads)-1], "load", func(name string) (time.Time, error) {
		if err := b.delete(ctx, name); err != nil {
			return time.Time{}, err
		}
		return f.wait(ctx, "gone", f.gone, name)
	})
	return err
}

// deleteNode deletes the Node object, so that the next agent registers the node again.
func (b *bench) deleteNode(ctx context.Context) error {
	err := b.api.Core.Delete().Resource("nodes").Name(b.node.Name).Body(&metav1.DeleteOptions{}).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
