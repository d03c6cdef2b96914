package node

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// refusal says why the API server did not accept a request.
type refusal struct {
	err error
	// since is the time of the first refusal in a row; zero if this agent has not had a request accepted.
	since time.Time
	// ready is the condition Ready that was sent; nil if none was.
	ready *corev1.NodeCondition
}

// acceptance holds why the last request of one kind was refused; nil if it was accepted. One goroutine calls note.
type acceptance struct{ last atomic.Pointer[refusal] }

// note keeps the result of a request with the condition Ready that it sent, or nil.
func (a *acceptance) note(now time.Time, err error, ready *corev1.NodeCondition) {
	if err == nil {
		a.last.Store(nil)
		return
	}
	next := &refusal{err: err, since: now, ready: ready}
	if before := a.last.Load(); before != nil {
		next.since = before.since
	}
	a.last.Store(next)
}

// lasts reports whether requests have been refused for as long as a lease is valid. A shorter outage leaves the node
// Ready in the cluster too.
func (f *refusal) lasts(valid time.Duration) bool { return f != nil && time.Since(f.since) >= valid }

var errNotSent = errors.New("none was sent yet")

// Shown returns the Node object for people. If the API server does not have the status that the agent reports, its
// condition Ready is Unknown and says why. What is sent stays the agent's own.
func (r *Reporter) Shown() *corev1.Node {
	n := r.Node()
	if r.deleted.Load() {
		return withReady(n, "NodeDeleted", deletedMessage)
	}
	refused := r.sent.last.Load()
	if r.lease != nil && !refused.lasts(r.cfg.LeaseDuration) {
		refused = r.lease.sent.last.Load()
	}
	if !refused.lasts(r.cfg.LeaseDuration) {
		return n
	}
	message := "the API server has not accepted a status"
	if !refused.since.IsZero() {
		message += " or lease since " + refused.since.UTC().Format(time.RFC3339)
	}
	message += ": " + refused.err.Error()
	own := refused.ready
	if own == nil {
		own = find(n.Status.Conditions, corev1.NodeReady)
	}
	if own != nil {
		message += fmt.Sprintf("; the agent itself: %s: %s", own.Status, own.Message)
	}
	return withReady(n, "StatusNotAccepted", message)
}

// withReady returns a copy of n with the condition Ready Unknown.
func withReady(n *corev1.Node, reason, message string) *corev1.Node {
	n = n.DeepCopy()
	n.Status.Conditions = mergeConditions(n.Status.Conditions, []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: reason, Message: message}})
	return n
}
