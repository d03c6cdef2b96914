package node

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
)

// reportState is the state of report. No other goroutine uses it.
type reportState struct {
	started     time.Time
	reconciled  bool      // labels and annotations of the existing object have been updated
	emptyRoot   bool      // an installation that has run no pod yet; false once the first status was sent
	nextReport  time.Time // when to send the status even if nothing has changed; zero: now
	failed      int       // failed attempts to send in a row
	retryAt     time.Time // the earliest time of the next attempt after a failure
	own         ownAddresses
	machineRead time.Time
	watched     string // the resource version that the watch has brought last
}

// report registers the node. Then it compares the status at each tick and each change, and sends it if it is due.
func (r *Reporter) report(ctx context.Context) {
	r.state.started = time.Now()
	r.awaitRuntime(ctx)
	n := r.register(ctx)
	if n == nil {
		return
	}
	r.take(n)
	for {
		r.sync(ctx, time.Now())
		due := time.After(periodic.Until(r.cfg.StatusInterval))
		select {
		case <-ctx.Done():
			return
		case n := <-r.seen:
			r.takeWatched(n)
		case <-r.gone: // or the watch is older than the registration
			r.state.nextReport = time.Time{}
		case done := <-r.outdated:
			r.read(ctx)
			close(done)
		case <-r.wake:
		case <-due:
		case <-r.state.retryTimer():
		}
	}
}

const deletedMessage = "the Node object was deleted; restart the agent to register it again"

// Refresh reads the Node object again, because the watch may be late. It returns when Node returns what was read, or
// after a time limit. If no version is known yet, it returns at once.
func (r *Reporter) Refresh(ctx context.Context) {
	if r.newest.Load() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, client.RequestTimeout)
	defer cancel()
	done := make(chan struct{})
	select {
	case r.outdated <- done:
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// read reads the Node object.
func (r *Reporter) read(ctx context.Context) {
	found := &corev1.Node{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return r.beat.Core.Get().Resource("nodes").Name(r.cfg.Name).Do(ctx).Into(found)
	})
	switch {
	case err == nil:
		r.take(found)
	case apierrors.IsNotFound(err):
		r.noteDeleted()
	}
}

// noteDeleted notes that the API server has no Node object. A node that was deleted stays deleted, as with the kubelet:
// an administrator who removes it from the cluster does not want it back.
func (r *Reporter) noteDeleted() {
	if !r.deleted.Swap(true) {
		r.log.Warn(deletedMessage, "node", r.cfg.Name)
	}
}

// retryTimer returns a channel that receives when it is time to send again after a failure; nil without a failure.
func (s *reportState) retryTimer() <-chan time.Time {
	if s.failed == 0 {
		return nil
	}
	return time.After(time.Until(s.retryAt))
}

// awaitRuntime waits a short time for the first answer of the runtime.
func (r *Reporter) awaitRuntime(ctx context.Context) {
	limit := time.After(firstAnswer)
	for {
		if !r.healthNow().answered.IsZero() {
			return
		}
		select {
		case <-r.wake:
		case <-limit:
			return
		case <-ctx.Done():
			return
		}
	}
}

// take makes n the newest version, unless a newer one has arrived: answers to patches and the watch come in any order.
func (r *Reporter) take(n *corev1.Node) {
	before := r.newest.Load()
	if before != nil && before.UID == n.UID &&
		(n.ResourceVersion == before.ResourceVersion || watch.Older(n.ResourceVersion, before.ResourceVersion)) {
		return
	}
	r.store(n)
}

// takeWatched is take for a version from the watch. If the watch goes back, etcd was restored from a backup, and what
// was known before counts no more.
func (r *Reporter) takeWatched(n *corev1.Node) {
	restored := watch.Older(n.ResourceVersion, r.state.watched)
	r.state.watched = n.ResourceVersion
	if restored {
		r.store(n)
		return
	}
	r.take(n)
}

// store makes n the newest version.
func (r *Reporter) store(n *corev1.Node) {
	before := r.newest.Load()
	n.ManagedFields = nil
	r.newest.Store(n)
	r.deleted.Store(false)
	if before != nil && before.UID != n.UID {
		r.state.reconciled = false
	}
	if before == nil {
		close(r.appeared)
	}
	// A node that is cordoned when the agent starts has the event again, as with the kubelet.
	if was := before != nil && before.Spec.Unschedulable; was != n.Spec.Unschedulable {
		reason := "NodeSchedulable"
		if n.Spec.Unschedulable {
			reason = "NodeNotSchedulable"
		}
		r.cfg.Event(corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", r.cfg.Name, reason))
	}
	r.cfg.Changed(n)
}

// sync sends the status if it has changed, if it is due, or if the last attempt has failed.
func (r *Reporter) sync(ctx context.Context, now time.Time) {
	if now.Before(r.state.retryAt) {
		return
	}
	if r.setBack.Swap(false) {
		// The node controller takes no lease with an earlier time as a sign of life, before it sees another status.
		r.state.nextReport = time.Time{}
	}
	old := r.newest.Load()
	object := *old // fields are replaced below, what they point to is never changed
	wanted := &object
	r.reconcile(wanted)
	status, events := r.cfg.status(old, r.gather(ctx, now), now)
	wanted.Status = status
	changed := !sameStatus(old.Status, status) ||
		!maps.Equal(old.Labels, wanted.Labels) ||
		!maps.Equal(old.Annotations, wanted.Annotations)
	if !changed && r.state.failed == 0 && now.Before(r.state.nextReport) {
		if r.setReported(old.Status.VolumesInUse) {
			r.cfg.Changed(old)
		}
		return
	}
	updated, err := r.send(ctx, old, wanted)
	if err != nil {
		r.sendFailed(ctx, now, err, find(status.Conditions, corev1.NodeReady))
		return
	}
	if r.state.failed > 0 {
		r.log.Info("node status is sent again", "failures", r.state.failed)
	}
	r.sent.note(now, nil, nil)
	r.state.failed, r.state.retryAt = 0, time.Time{}
	r.state.reconciled, r.state.emptyRoot = true, false
	r.state.scheduleReport(now, r.cfg.ReportInterval, changed)
	r.record(events)
	r.take(updated)
	if r.setReported(updated.Status.VolumesInUse) { // after take: what Node returns is not older
		r.cfg.Changed(r.newest.Load())
	}
}

// scheduleReport sets the time of the next report. After a change it is between half and one and a half of the
// interval, so that many nodes that change together spread their requests; else it is one interval.
func (s *reportState) scheduleReport(now time.Time, interval time.Duration, changed bool) {
	wait := interval
	if changed || s.nextReport.IsZero() {
		wait = wait/2 + rand.N(wait)
	}
	s.nextReport = now.Add(wait)
}

func (r *Reporter) sendFailed(ctx context.Context, now time.Time, err error, ready *corev1.NodeCondition) {
	if ctx.Err() != nil {
		return
	}
	r.sent.note(now, err, ready)
	r.state.failed++
	wait := backoff.Doubled(200*time.Millisecond, r.cfg.StatusInterval, r.state.failed)
	if r.state.failed == 1 {
		r.log.Warn("cannot send the node status, trying again", "err", err, "retryIn", wait)
	}
	r.state.retryAt = now.Add(wait)
}

// send patches the object's status, and returns its new version.
func (r *Reporter) send(ctx context.Context, old, wanted *corev1.Node) (*corev1.Node, error) {
	var own []corev1.NodeCondition
	for _, c := range wanted.Status.Conditions {
		if owns(c.Type) {
			own = append(own, c)
		}
	}
	patch, err := statusPatch(old, wanted, own)
	if err != nil {
		return nil, err
	}
	updated := &corev1.Node{}
	err = client.Within(ctx, r.cfg.StatusInterval, func(ctx context.Context) error {
		return r.beat.Core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(r.cfg.Name).SubResource("status").
			Body(patch).Do(ctx).Into(updated)
	})
	if apierrors.IsNotFound(err) {
		r.noteDeleted()
	}
	if err != nil {
		return nil, fmt.Errorf("patch node status: %w", err)
	}
	return updated, nil
}

func (r *Reporter) record(events []nodeEvent) {
	for _, e := range events {
		r.cfg.Event(e.kind, e.reason, e.message)
	}
}

// gather returns the current facts. It reads the machine and the addresses again if they may be out of date.
func (r *Reporter) gather(ctx context.Context, now time.Time) facts {
	if now.Sub(r.state.machineRead) >= machineInterval {
		if err := r.readMachine(now); err != nil {
			r.state.machineRead = now
			r.log.Warn("cannot read the facts of the machine, keeping the old ones", "err", err, "retryIn", machineInterval)
		}
	}
	r.state.own.refresh(ctx, now, &r.cfg)
	m := r.machine.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.volumesInUse != nil {
		r.reported = slices.DeleteFunc(slices.Clone(r.reported), func(v corev1.UniqueVolumeName) bool {
			return !slices.Contains(r.volumesInUse, v) // it leaves the list if what follows from these facts is sent
		})
	}
	return facts{
		machine:      m.Machine,
		capacity:     overlay(r.devices, m.capacity),
		allocatable:  overlay(r.healthy, m.allocatable),
		addresses:    r.state.own.list(&r.cfg),
		images:       r.images,
		volumesInUse: r.volumesInUse,
		health:       r.health,
		atStart:      !r.state.reconciled,
		emptyRoot:    r.state.emptyRoot,
		keepReady:    !r.everReady && now.Sub(r.state.started) < r.cfg.LeaseDuration*3/4,
	}
}
