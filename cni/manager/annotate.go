package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	added   latest.Signal

	mu sync.Mutex
	// pods holds the newest annotation of each pod whose sandbox is attached, by UID.
	pods map[string]*annotation
	// writing has the UIDs of the pods of which a write runs, one at a time: the annotation of a newer sandbox must come
	// last. Only run uses it.
	writing map[string]bool
}

// annotation is that of one pod. Only run uses what may change.
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
		added:   latest.NewSignal(),
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
	a.added.Set()
}

// run annotates pods until ctx ends. attached reports whether a sandbox is still attached to its networks. The API
// server may take long for one pod: the others do not wait for it.
func (a *annotations) run(ctx context.Context, attached func(sandbox string) bool) {
	var running sync.WaitGroup
	defer running.Wait()
	ended := make(chan func())
	start := func(p *annotation, object *corev1.Pod) {
		a.writing[p.record.Pod.UID] = true
		running.Go(func() {
			err := a.write(ctx, p.record, object)
			select {
			case ended <- func() { a.done(p, object.UID, err) }:
			case <-ctx.Done():
			}
		})
	}
	var shown shownPods
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case shown = <-a.shown:
		case <-a.added:
		case <-retry:
		case record := <-ended:
			record()
		}
		if shown != nil {
			retry = a.round(shown, attached, start)
		}
	}
}

// round starts the writes of the annotations that are due, and returns when to run again. The end of a write also asks
// for that.
func (a *annotations) round(shown shownPods, attached func(string) bool,
	start func(*annotation, *corev1.Pod)) <-chan time.Time {
	a.mu.Lock()
	pods := slices.Collect(maps.Values(a.pods))
	a.mu.Unlock()
	var next time.Time
	for _, p := range pods {
		object, ok := shown(types.UID(p.record.Pod.UID))
		switch {
		case a.writing[p.record.Pod.UID], ok && object.UID == p.settled:
		case !attached(p.record.Sandbox):
			a.remove(p)
		case !ok:
		case !time.Now().Before(p.next):
			start(p, object)
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

// remove removes the annotation of a pod, unless that of a newer sandbox has replaced it.
func (a *annotations) remove(p *annotation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if uid := p.record.Pod.UID; a.pods[uid] == p {
		delete(a.pods, uid)
	}
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
