package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/latest"
)

// shownPods returns the object that shows a pod in the API server: the pod itself, or the mirror pod of a static one.
type shownPods func(uid types.UID) (*corev1.Pod, bool)

// annotations writes the network-status annotation of pods that have selected networks, to each object that shows such
// a pod in the API server: the mirror pod of a static pod may come late, and may be created again. What is left when
// the agent stops, the next start adds again.
type annotations struct {
	cluster cluster
	event   func(pod cni.Pod, eventType, reason, message string)
	shown   latest.Value[shownPods]
	moved   latest.Signal // an annotation was added, or a write has ended
	writes  sync.WaitGroup

	mu sync.Mutex
	// pods holds the newest annotation of each pod whose sandbox is attached, by UID.
	pods map[string]*annotation
	// writing has the UIDs of the pods of which a write runs, one at a time: the annotation of a newer sandbox must come
	// last.
	writing map[string]bool
}

// annotation is that of one pod.
type annotation struct {
	record *cni.Record
	// settled is the UID of the object that has the annotation, or for which the API server has refused it for good.
	settled types.UID
	backoff backoff.Backoff
	next    time.Time
}

func newAnnotations(c cluster, event func(pod cni.Pod, eventType, reason, message string)) *annotations {
	return &annotations{
		cluster: c,
		event:   event,
		shown:   latest.NewValue[shownPods](),
		moved:   latest.NewSignal(),
		pods:    map[string]*annotation{},
		writing: map[string]bool{},
	}
}

// add takes the record of an attached sandbox. A pod that has selected no network needs no annotation.
func (a *annotations) add(rec *cni.Record) {
	if len(rec.Attachments) == 0 || len(rec.Attachments) == 1 && rec.Attachments[0].Label == "" {
		return
	}
	a.mu.Lock()
	a.pods[rec.Pod.UID] = &annotation{record: rec}
	a.mu.Unlock()
	a.moved.Set()
}

// run annotates pods until ctx ends. attached reports whether a sandbox is still attached to its networks. The API
// server may take long for one pod: the others do not wait for it.
func (a *annotations) run(ctx context.Context, attached func(sandbox string) bool) {
	defer a.writes.Wait()
	var shown shownPods
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case shown = <-a.shown:
		case <-a.moved:
		case <-retry:
		}
		if shown != nil {
			retry = a.round(ctx, shown, attached)
		}
	}
}

// round starts the writes of the annotations that are due, and returns when to run again. The end of a write also asks
// for that. It forgets the annotations of sandboxes that are not attached any more.
func (a *annotations) round(ctx context.Context, shown shownPods, attached func(string) bool) <-chan time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	var next time.Time
	for uid, p := range a.pods {
		object, ok := shown(types.UID(uid))
		switch {
		case a.writing[uid], ok && object.UID == p.settled:
		case !attached(p.record.Sandbox):
			delete(a.pods, uid)
		case !ok:
		case !time.Now().Before(p.next):
			a.writing[uid] = true
			a.writes.Go(func() { a.done(p, object.UID, a.write(ctx, p.record, object)) })
		case next.IsZero() || p.next.Before(next):
			next = p.next
		}
	}
	if next.IsZero() {
		return nil
	}
	return time.After(time.Until(next))
}

// done records the end of a write to the object with a UID.
func (a *annotations) done(p *annotation, object types.UID, err error) {
	defer a.moved.Set()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.writing, p.record.Pod.UID)
	if err != nil && !isFinal(err) {
		p.next = time.Now().Add(p.backoff.Next(0))
		return
	}
	*p = annotation{record: p.record, settled: object}
	if err != nil {
		message := fmt.Sprintf("cannot write the annotation %s: %v", cni.StatusAnnotation, err)
		a.event(p.record.Pod, corev1.EventTypeWarning, "NetworkStatusFailed", message)
	}
}

func (a *annotations) write(ctx context.Context, rec *cni.Record, object *corev1.Pod) error {
	text, err := rec.StatusText()
	if err != nil {
		return &finalError{err}
	}
	return a.cluster.annotate(ctx, object, cni.StatusAnnotation, text)
}

// finalError is an error that another try does not change.
type finalError struct{ error }

// isFinal reports whether another try cannot succeed, for example because the API server has refused the request for
// good. What it says about the UID is about another pod of the name, which the source of pods will show.
func isFinal(err error) bool {
	var final *finalError
	if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid); ok && cause.Field == "metadata.uid" {
		return false
	}
	return errors.As(err, &final) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}
