package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/kube/client"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// watchLag is how long a mirror pod that was just created or deleted is not touched, until the watch reports it.
const watchLag = 10 * time.Second

// MirrorConfig is the configuration of Mirrors.
type MirrorConfig struct {
	// API speaks to /api/v1.
	API rest.Interface
	// NodeName is the node's name.
	NodeName string
	// NodeUID returns the UID of the Node object, which owns the mirror pods. An error delays their creation: the Node
	// does not exist yet, or is being deleted.
	NodeUID func(ctx context.Context) (types.UID, error)
	// Ending reports whether a pod of this name other than now, the static pod in the Set (empty: there is none),
	// still exists on the node: one whose manifest was removed or changed. Its mirror pod stays until it has ended.
	// Call Wake then.
	Ending func(name types.NamespacedName, now types.UID) bool
	// Log receives failures, once for each pod until its mirror pod is up to date again.
	Log *slog.Logger
}

// Mirrors maintains a mirror pod in the API server for each static pod, and deletes all others of the node.
type Mirrors struct {
	cfg  MirrorConfig
	sets latest.Value[*Set]
	wake latest.Signal
	// had are the names of the static pods that were in a Set, until their mirror pods are deleted. Only Run uses it.
	had map[types.NamespacedName]bool
}

// NewMirrors returns a Mirrors that does nothing before Run.
func NewMirrors(cfg MirrorConfig) *Mirrors {
	return &Mirrors{cfg: cfg, sets: latest.NewValue[*Set](), wake: latest.NewSignal(),
		had: map[types.NamespacedName]bool{}}
}

// Keep passes the newest Set to Run. It does not block. Only one goroutine may call it.
func (m *Mirrors) Keep(s *Set) { m.sets.Put(s) }

// Wake makes Run call Ending again.
func (m *Mirrors) Wake() { m.wake.Set() }

// Run creates and deletes mirror pods until ctx ends. Failures are retried with back-off. The API server may take long
// for one: the others do not wait for it.
func (m *Mirrors) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	tries := map[types.NamespacedName]*try{}
	ended := make(chan func())
	start := func(name types.NamespacedName, t *try, c change) {
		t.running = true
		running.Go(func() {
			err := m.apply(ctx, c)
			record := func() {
				t.done(err, m.cfg.Log.With("pod", name.String()))
				if err == nil && c.create == nil {
					delete(m.had, name)
				}
			}
			select {
			case ended <- record:
			case <-ctx.Done():
			}
		})
	}
	var set *Set
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case set = <-m.sets:
		case <-m.wake:
		case <-retry:
		case record := <-ended:
			record()
		}
		if set != nil {
			retry = m.round(set, tries, start)
		}
	}
}

// try is the last attempt for a mirror pod, and the time of the next.
type try struct {
	about   types.UID // of the pod that was, or should have been, mirrored or removed
	backoff backoff.Backoff
	failing bool
	running bool
	next    time.Time
}

// round starts the changes that are due, one for each name, and returns when to run again. The end of a change also
// asks for that.
func (m *Mirrors) round(set *Set, tries map[types.NamespacedName]*try,
	start func(types.NamespacedName, *try, change)) <-chan time.Time {
	for _, pod := range set.Pods {
		if podutil.IsStatic(pod) {
			m.had[nameOf(pod)] = true
		}
	}
	changes := changesFor(set, m.had, m.cfg.Ending)
	for name, t := range tries {
		if _, ok := changes[name]; !ok && !t.running {
			delete(tries, name)
		}
	}
	var next time.Time
	for name, c := range changes {
		t := tries[name]
		if t != nil && t.running {
			continue
		}
		if t == nil || t.about != c.about() { // another change does not wait for the back-off of this one
			t = &try{about: c.about()}
			tries[name] = t
		}
		if !time.Now().Before(t.next) {
			start(name, t, c)
		} else if next.IsZero() || t.next.Before(next) {
			next = t.next
		}
	}
	if next.IsZero() {
		return nil
	}
	return time.After(time.Until(next))
}

func (t *try) done(err error, log *slog.Logger) {
	if err == nil {
		if t.failing {
			log.Info("mirror pod is up to date again")
		}
		*t = try{about: t.about, next: time.Now().Add(watchLag)}
		return
	}
	if !t.failing {
		log.Warn("cannot update mirror pod, retrying", "err", err)
	}
	t.failing, t.running = true, false
	t.next = time.Now().Add(t.backoff.Next(0))
}

// change is what to do with the mirror pod of one name: delete it, create it, or first one, then the other.
type change struct {
	remove *corev1.Pod // the mirror pod as the API server has it
	create *corev1.Pod // the static pod
}

func (c change) about() types.UID {
	if c.create != nil {
		return c.create.UID
	}
	return c.remove.UID
}

// changesFor compares static pods with the known mirror pods. Before all sources are synced no mirror pod is an
// orphan; before the pods of the API server are known none is missing. While static pods may be unknown, only those
// are orphans whose static pods this agent had, and has no more.
func changesFor(set *Set, had map[types.NamespacedName]bool,
	ending func(types.NamespacedName, types.UID) bool) map[types.NamespacedName]change {
	changes := map[types.NamespacedName]change{}
	if slices.Contains(set.Waiting, SourceAPI) {
		return changes
	}
	wanted := map[types.NamespacedName]bool{}
	for _, pod := range set.Pods {
		if !podutil.IsStatic(pod) {
			continue
		}
		name := nameOf(pod)
		wanted[name] = true
		have := set.Mirrors[name]
		switch {
		case ending(name, pod.UID):
		case have == nil:
			changes[name] = change{create: pod}
		case have.DeletionTimestamp != nil || !mirrors(have, pod):
			changes[name] = change{remove: have, create: pod}
		}
	}
	for name, have := range set.Mirrors {
		if !wanted[name] && set.Synced && (had[name] || !set.Unknown()) && !ending(name, "") {
			changes[name] = change{remove: have}
		}
	}
	return changes
}

func (m *Mirrors) apply(ctx context.Context, c change) error {
	if c.remove != nil {
		if err := m.remove(ctx, c.remove); err != nil {
			return err
		}
	}
	if c.create != nil {
		return m.create(ctx, c.create)
	}
	return nil
}

// remove deletes a mirror pod immediately, if it is still the one with this UID.
func (m *Mirrors) remove(ctx context.Context, pod *corev1.Pod) error {
	now := &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	err := client.BoundedWrite(ctx, func(ctx context.Context) error {
		return m.cfg.API.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Body(now).Do(ctx).Error()
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a conflict: another pod has the name now
		return fmt.Errorf("delete mirror pod: %w", err)
	}
	return nil
}

func (m *Mirrors) create(ctx context.Context, pod *corev1.Pod) error {
	node, err := m.cfg.NodeUID(ctx)
	if err != nil {
		return fmt.Errorf("create mirror pod: get the UID of the node, its owner: %w", err)
	}
	mirror := mirrorOf(pod, m.cfg.NodeName, node)
	err = client.BoundedWrite(ctx, func(ctx context.Context) error {
		return m.cfg.API.Post().Namespace(pod.Namespace).Resource("pods").Body(mirror).Do(ctx).Error()
	})
	if apierrors.IsAlreadyExists(err) {
		return m.reconcile(ctx, pod)
	}
	if err != nil {
		return fmt.Errorf("create mirror pod: %w", err)
	}
	return nil
}

// reconcile reads the pod that has the name of the mirror pod. It may be the wanted one: the answer to an earlier
// request was lost, or the watch is late.
func (m *Mirrors) reconcile(ctx context.Context, pod *corev1.Pod) error {
	have := &corev1.Pod{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return m.cfg.API.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Do(ctx).Into(have)
	})
	switch {
	case err != nil:
		return fmt.Errorf("create mirror pod: read the pod that has its name: %w", err)
	case mirrors(have, pod) && have.DeletionTimestamp == nil:
		return nil
	case have.Annotations[podutil.AnnotationMirror] == "" || have.Spec.NodeName != m.cfg.NodeName:
		return fmt.Errorf("create mirror pod: another pod (UID %s) has its name: "+
			"rename the static pod or delete the other pod", have.UID)
	}
	if err := m.remove(ctx, have); err != nil {
		return err
	}
	return errors.New("create mirror pod: an older one existed and was deleted, " +
		"creating the new one with the next attempt")
}
