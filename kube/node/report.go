package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/nodelet/nodelet/kube/client"
)

// reportState belongs to report.
type reportState struct {
	started     time.Time
	reconciled  bool      // the object that was found has been brought up to date
	nextReport  time.Time // when the status is due though nothing changed; zero: now
	failed      int       // sends in a row
	retryAt     time.Time // after a failure: not before
	ips         []netip.Addr
	addressErr  string // the last one, so that it is said once
	machineRead time.Time
}

// report registers the node and then looks, at each tick and whenever it is woken, whether there is something to send.
func (r *Reporter) report(ctx context.Context) {
	r.state.started = time.Now()
	r.awaitFirstWord(ctx)
	n := r.register(ctx)
	if n == nil {
		return
	}
	r.take(n)
	tick := time.NewTicker(r.cfg.StatusInterval)
	defer tick.Stop()
	for {
		r.sync(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case n := <-r.seen:
			r.take(n)
		case <-r.gone:
			r.lookForNode(ctx)
		case <-r.wake:
		case <-tick.C:
		case <-r.retryTimer():
		}
	}
}

// lookForNode makes sure of what the watch says, that there is no Node object: its first list may be older than the
// registration. A node that was deleted stays so, as with the kubelet: whoever took it out of the cluster wants it out.
func (r *Reporter) lookForNode(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, client.RequestTimeout)
	defer cancel()
	found := &corev1.Node{}
	err := r.beat.api().Core.Get().Resource("nodes").Name(r.cfg.Name).Do(ctx).Into(found)
	switch {
	case err == nil:
		r.take(found)
	case apierrors.IsNotFound(err):
		r.log.Warn("the Node object was deleted; restart the agent to register it again", "node", r.cfg.Name)
	}
}

// retryTimer fires when a failed send may be tried again.
func (r *Reporter) retryTimer() <-chan time.Time {
	if r.state.failed == 0 {
		return nil
	}
	return time.After(time.Until(r.state.retryAt))
}

// awaitFirstWord gives the runtime a moment to say that it is ready.
func (r *Reporter) awaitFirstWord(ctx context.Context) {
	limit := time.After(firstLook)
	for {
		if !r.healthNow().heard.IsZero() {
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

// take makes n the newest version, unless a newer one is here already (the answer to a patch and the watch overtake
// each other).
func (r *Reporter) take(n *corev1.Node) {
	before := r.newest.Load()
	if before != nil && before.UID == n.UID {
		order, err := resourceversion.CompareResourceVersion(n.ResourceVersion, before.ResourceVersion)
		if err == nil && order <= 0 {
			return
		}
	}
	n.ManagedFields = nil
	r.newest.Store(n)
	if before != nil && before.UID != n.UID {
		r.state.reconciled = false
	}
	if before == nil {
		close(r.appeared)
	} else if before.Spec.Unschedulable != n.Spec.Unschedulable {
		reason := "NodeSchedulable"
		if n.Spec.Unschedulable {
			reason = "NodeNotSchedulable"
		}
		r.cfg.Event(corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", r.cfg.Name, reason))
	}
	if r.cfg.Changed != nil {
		r.cfg.Changed(n)
	}
}

// sync sends the status when it changed, when it is due, or when the last send failed.
func (r *Reporter) sync(ctx context.Context, now time.Time) {
	if now.Before(r.state.retryAt) {
		return
	}
	old := r.newest.Load()
	object := *old // parts are replaced below, never written through
	wanted := &object
	r.reconcile(wanted, !r.state.reconciled)
	status, events := r.cfg.status(old, r.gather(ctx, now), now)
	wanted.Status = status
	changed := !sameStatus(old.Status, status) || !maps.Equal(old.Labels, wanted.Labels) || !maps.Equal(old.Annotations, wanted.Annotations)
	if !changed && now.Before(r.state.nextReport) {
		return
	}
	updated, err := r.send(ctx, old, wanted)
	if err != nil {
		r.sendFailed(ctx, now, err)
		return
	}
	if r.state.failed > 0 {
		r.log.Info("node status is sent again", "failed", r.state.failed)
	}
	r.state.failed, r.state.retryAt, r.state.reconciled = 0, time.Time{}, true
	r.scheduleReport(now, changed)
	r.record(events)
	r.take(updated)
}

// scheduleReport spreads the reports of many nodes that changed together: the next one comes after half to one and a
// half of the interval, the following ones each interval.
func (r *Reporter) scheduleReport(now time.Time, changed bool) {
	wait := r.cfg.ReportInterval
	if changed || r.state.nextReport.IsZero() {
		wait = wait/2 + rand.N(wait)
	}
	r.state.nextReport = now.Add(wait)
}

func (r *Reporter) sendFailed(ctx context.Context, now time.Time, err error) {
	if ctx.Err() != nil {
		return
	}
	if r.state.failed++; r.state.failed == 1 {
		r.log.Warn("send node status; will retry", "err", err)
	}
	wait := min(200*time.Millisecond<<min(r.state.failed-1, 10), r.cfg.StatusInterval)
	r.state.retryAt = now.Add(wait)
}

// send patches the object's status; the answer is its new version.
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
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StatusInterval)
	defer cancel()
	updated := &corev1.Node{}
	err = r.beat.api().Core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(r.cfg.Name).SubResource("status").
		Body(patch).Do(ctx).Into(updated)
	if apierrors.IsNotFound(err) {
		return nil, errors.Join(err, errors.New("the Node object is gone; restart the agent to register it again"))
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

// gather takes what is known now. The machine and the addresses are read anew when they may be old.
func (r *Reporter) gather(ctx context.Context, now time.Time) facts {
	if now.Sub(r.state.machineRead) >= factsLife {
		if err := r.readMachine(now); err != nil {
			r.state.machineRead = now
			r.log.Warn("keep the old facts of the machine", "err", err)
		}
	}
	r.refreshIPs(ctx)
	m := r.machine.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	return facts{
		machine: m.Machine, capacity: overlay(r.in.devices, m.capacity), allocatable: overlay(r.in.healthy, m.allocatable),
		addresses: r.addresses(),
		images:    r.in.images, volumesInUse: r.in.volumesInUse, health: r.in.health,
		keepReady: !r.in.everReady && now.Sub(r.state.started) < r.cfg.LeaseDuration*3/4,
	}
}

// refreshIPs looks for the node's addresses where they are unknown or no longer on this machine. On an error the old
// ones stay: better an address that may come back than none.
func (r *Reporter) refreshIPs(ctx context.Context) {
	if len(r.state.ips) > 0 && !slices.ContainsFunc(r.state.ips, func(ip netip.Addr) bool { return local(ip) != nil }) {
		return
	}
	if r.cfg.ExternalCloud && len(r.cfg.IPs) == 0 {
		return // the cloud controller manager knows them
	}
	ips, err := findIPs(ctx, r.cfg.Name, r.cfg.IPs)
	text := ""
	if err != nil {
		text = err.Error()
	} else {
		r.state.ips = ips
	}
	if text != "" && text != r.state.addressErr {
		r.log.Warn("the node's address is not known; will look again", "err", err)
	}
	r.state.addressErr = text
}

// addresses gives status.addresses, nil while they are not known.
func (r *Reporter) addresses() []corev1.NodeAddress {
	if len(r.state.ips) == 0 && !r.cfg.ExternalCloud {
		return nil
	}
	return addresses(r.state.ips, r.cfg.Name)
}
