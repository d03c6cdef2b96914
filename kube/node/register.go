package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/pkg/apis"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
	"github.com/nodelet/nodelet/kube/client"
)

const (
	attachDetachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"
	providedIPAnnotation   = "alpha.kubernetes.io/provided-node-ip"
	cloudTaint             = "node.cloudprovider.kubernetes.io/uninitialized"
)

// initialNode returns the Node object to register, without a status.
func (r *Reporter) initialNode() *corev1.Node {
	c := &r.cfg
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        c.Name,
		Labels:      c.defaultLabels(),
		Annotations: c.annotations(),
	}}
	maps.Copy(n.Labels, c.Labels)
	n.Spec.ProviderID = c.ProviderID
	n.Spec.Taints = slices.Clone(c.Taints)
	if c.ExternalCloud {
		taint := corev1.Taint{Key: cloudTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule}
		n.Spec.Taints = append(n.Spec.Taints, taint)
	}
	return n
}

// updateLocal builds the object to register. If it has changed, and while there is no object from the API server, it
// becomes the result of Node.
func (r *Reporter) updateLocal(ctx context.Context, now time.Time) *corev1.Node {
	before := r.local.Load()
	n := r.initialNode()
	n.Status, _ = r.cfg.status(before, r.gather(ctx, now), now)
	if r.newest.Load() == nil && !sameStatus(before.Status, n.Status) {
		r.local.Store(n)
		r.cfg.Changed(n)
	}
	return n
}

// standalone keeps the facts of a node without an API server.
func (r *Reporter) standalone(ctx context.Context) {
	r.state.started = time.Now()
	for {
		r.updateLocal(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-time.After(periodic.Until(r.cfg.StatusInterval)):
		}
	}
}

// defaultLabels returns the labels that every node has.
func (c *Config) defaultLabels() map[string]string {
	return map[string]string{
		corev1.LabelHostname:   c.Name,
		corev1.LabelOSStable:   runtime.GOOS,
		corev1.LabelArchStable: runtime.GOARCH,
		apis.LabelOS:           runtime.GOOS,
		apis.LabelArch:         runtime.GOARCH,
	}
}

// reconcile sets the labels and annotations of n that this agent owns: those of the registration if it registers the
// node and has not set them yet, and always the operating system, the architecture and the addresses that the user
// gave, which must never be wrong. A user may have changed labels that are not among KubeletLabels.
func (r *Reporter) reconcile(n *corev1.Node) {
	n.Labels, n.Annotations = maps.Clone(n.Labels), maps.Clone(n.Annotations)
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	wanted := r.initialNode()
	labels, annotations := []string{corev1.LabelOSStable, corev1.LabelArchStable}, []string{providedIPAnnotation}
	if r.cfg.Register && !r.state.reconciled {
		labels, annotations = apis.KubeletLabels(), []string{attachDetachAnnotation, providedIPAnnotation}
	}
	for _, k := range labels {
		if v := wanted.Labels[k]; v != "" {
			n.Labels[k] = v
		}
	}
	for _, k := range annotations {
		if v := wanted.Annotations[k]; v != "" {
			n.Annotations[k] = v
		} else {
			delete(n.Annotations, k)
		}
	}
}

// annotations returns those that this agent owns.
func (c *Config) annotations() map[string]string {
	all := map[string]string{}
	if c.AttachDetach {
		all[attachDetachAnnotation] = "true"
	}
	if c.ExternalCloud && len(c.IPs) > 0 && !c.IPs[0].IsUnspecified() {
		all[providedIPAnnotation] = c.IPs[0].String()
		for _, ip := range c.IPs[1:] {
			all[providedIPAnnotation] += "," + ip.String()
		}
	}
	return all
}

// register returns the Node object. It creates the object if it does not exist, or waits for it if another component
// registers it. It tries until ctx ends, and then returns nil.
func (r *Reporter) register(ctx context.Context) *corev1.Node {
	logged := ""
	for wait, failed := 200*time.Millisecond, 0; ; wait = min(2*wait, 7*time.Second) {
		n, err := r.tryRegister(ctx)
		if err == nil {
			r.log.Info("node is registered", "node", n.Name, "failures", failed)
			return n
		}
		r.sent.note(time.Now(), err, find(r.local.Load().Status.Conditions, corev1.NodeReady))
		failed++
		if why := said(err); failed == 1 || why != logged {
			logged = why
			r.log.Warn("cannot register the node, trying again", "node", r.cfg.Name, "err", err, "retryIn", wait)
		}
		if !backoff.Sleep(ctx, wait) {
			return nil
		}
	}
}

// said returns what the API server says in err, without what differs from one broken connection to the next.
func said(err error) string {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		return answer.Status().Message
	}
	return ""
}

func (r *Reporter) tryRegister(ctx context.Context) (*corev1.Node, error) {
	nodes := r.beat.Core
	now := time.Now()
	var refused error
	fresh := r.updateLocal(ctx, now)
	if r.cfg.Register {
		made := &corev1.Node{}
		err := client.BoundedWrite(ctx, func(ctx context.Context) error {
			return nodes.Post().Resource("nodes").Body(fresh).Do(ctx).Into(made)
		})
		if err == nil {
			_, events := conditions(r.cfg.Name, nil, r.healthNow(), false, now)
			r.record(events)
			return made, nil
		}
		// The agent may not have the permission to create the object, but the object may exist.
		err = fmt.Errorf("create node %s: %w", r.cfg.Name, err)
		switch {
		case apierrors.IsAlreadyExists(err):
		case apierrors.IsForbidden(err):
			refused = err
		default:
			return nil, err
		}
	}
	found := &corev1.Node{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return nodes.Get().Resource("nodes").Name(r.cfg.Name).Do(ctx).Into(found)
	})
	if err != nil {
		return nil, errors.Join(refused, fmt.Errorf("get node %s: %w", r.cfg.Name, err))
	}
	return found, nil
}
