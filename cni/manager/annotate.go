package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/internal/latest"
)

// The back-off after the API server could not be asked.
const (
	firstRetry = time.Second
	maxRetry   = time.Minute
)

// annotations writes the network-status annotation of pods that have selected networks. It tries each pod until the pod
// has it, or its sandbox is detached: the mirror pod of a static pod may come late. What is left when the agent stops,
// the next start adds again.
type annotations struct {
	cluster cluster
	event   func(pod cni.Pod, eventType, reason, message string)
	// attached reports whether a sandbox is still attached to its networks.
	attached func(sandbox string) bool
	added    latest.Signal

	mu sync.Mutex
	// pending holds the newest record of each pod that has to be annotated, by UID.
	pending map[string]*cni.Record
}

func newAnnotations(c cluster, event func(pod cni.Pod, eventType, reason, message string),
	attached func(sandbox string) bool) *annotations {
	return &annotations{
		cluster:  c,
		event:    event,
		attached: attached,
		added:    latest.NewSignal(),
		pending:  map[string]*cni.Record{},
	}
}

// add takes the record of an attached sandbox. A pod that has selected no network needs no annotation.
func (a *annotations) add(rec *cni.Record) {
	if len(rec.Attachments) == 0 || len(rec.Attachments) == 1 && rec.Attachments[0].Label == "" {
		return
	}
	a.mu.Lock()
	a.pending[rec.Pod.UID] = rec
	a.mu.Unlock()
	a.added.Set()
}

// run annotates pods until ctx ends.
func (a *annotations) run(ctx context.Context) {
	delay := firstRetry
	for {
		var retry <-chan time.Time
		if a.writeAll(ctx) {
			delay = firstRetry
		} else {
			retry = time.After(delay)
			delay = min(2*delay, maxRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.added:
		case <-retry:
		}
	}
}

// writeAll tries each pending pod once and reports whether none is left to be tried again.
func (a *annotations) writeAll(ctx context.Context) bool {
	a.mu.Lock()
	pending := make([]*cni.Record, 0, len(a.pending))
	for _, rec := range a.pending {
		pending = append(pending, rec)
	}
	a.mu.Unlock()
	complete := true
	for _, rec := range pending {
		if !a.attached(rec.Sandbox) {
			a.remove(rec)
			continue
		}
		if err := a.write(ctx, rec); err != nil && !isFinal(err) {
			complete = false
			continue
		} else if err != nil {
			message := fmt.Sprintf("cannot write the annotation %s: %v", cni.StatusAnnotation, err)
			a.event(rec.Pod, corev1.EventTypeWarning, "NetworkStatusFailed", message)
		}
		a.remove(rec)
	}
	return complete
}

func (a *annotations) write(ctx context.Context, rec *cni.Record) error {
	text, err := rec.StatusText()
	if err != nil {
		return &finalError{err}
	}
	return a.cluster.annotate(ctx, rec.Pod, cni.StatusAnnotation, text)
}

// remove removes rec from pending, unless a newer record of the pod has replaced it.
func (a *annotations) remove(rec *cni.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending[rec.Pod.UID] == rec {
		delete(a.pending, rec.Pod.UID)
	}
}

// finalError is an error that another try does not change.
type finalError struct{ error }

// isFinal reports whether another try cannot succeed, for example because the API server has refused the request for
// good.
func isFinal(err error) bool {
	var final *finalError
	var refused apierrors.APIStatus
	return errors.As(err, &final) || errors.As(err, &refused) && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err))
}
