package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/watch"
	"github.com/nodelet/nodelet/test/testbed"
)

// nullSide is the agent that does nothing but what cannot be left out: it watches the pods of its node, makes the CRI
// calls of the floor for each, patches one status, and deletes the pod when it has stopped. What an agent takes longer
// than this side is the agent's own; what this side takes longer than the floor is the control plane's.
const nullSide testbed.AgentKind = "null"

// nullAgent is the process of nullSide: a goroutine a pod in this process.
type nullAgent struct {
	b   *bench
	run *floorRun
	dir string

	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	pods map[types.UID]context.CancelFunc // of the pods that are not deleted yet; only the watch uses it

	mu  sync.Mutex
	err error // the first failure
}

// startNull registers the node and begins to follow its pods.
func startNull(ctx context.Context, b *bench) (*nullAgent, error) {
	rt, hangUp, err := b.node.Runtime.CRI()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nodelet-null-")
	if err != nil {
		return nil, err
	}
	a := &nullAgent{
		b:    b,
		run:  &floorRun{rt: rt, node: b.floorNode(dir)},
		dir:  dir,
		pods: map[types.UID]context.CancelFunc{},
	}
	a.ctx, a.stop = context.WithCancel(ctx)
	a.work.Go(func() { <-a.ctx.Done(); _ = hangUp() })
	if err := a.register(); err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.work.Go(a.renewLease)
	a.work.Go(func() {
		watch.Target{
			Client:        b.api.Core,
			Resource:      "pods",
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", b.node.Name).String(),
		}.Follow(a.ctx, a)
	})
	return a, nil
}

// close ends the agent. Its pods have ended before.
func (a *nullAgent) close() error {
	a.stop()
	a.work.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(a.err, os.RemoveAll(a.dir))
}

// register creates a Node object that is Ready, and its lease.
func (a *nullAgent) register() error {
	now := metav1.Now()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: a.b.node.Name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}
	if err := a.b.api.Core.Post().Resource("nodes").Body(node).Do(a.ctx).Error(); err != nil {
		return fmt.Errorf("register the null agent's node: %w", err)
	}
	return a.putLease()
}

const leaseNamespace = "kube-node-lease"

// putLease creates or renews the node's lease.
func (a *nullAgent) putLease() error {
	name, now := a.b.node.Name, metav1.NewMicroTime(time.Now())
	seconds := int32(40)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: leaseNamespace},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	leases := a.b.api.Coordination
	err := leases.Put().Namespace(leaseNamespace).Resource("leases").Name(name).Body(lease).Do(a.ctx).Error()
	if apierrors.IsNotFound(err) {
		err = leases.Post().Namespace(leaseNamespace).Resource("leases").Body(lease).Do(a.ctx).Error()
	}
	return err
}

func (a *nullAgent) renewLease() {
	for pause(a.ctx, 10*time.Second) == nil {
		_ = a.putLease()
	}
}

// Replace receives the state of all pods.
func (a *nullAgent) Replace(objs []metav1.Object) {
	for _, o := range objs {
		a.Set(o)
	}
}

// Set receives a pod that was added or changed.
func (a *nullAgent) Set(o metav1.Object) {
	pod := o.(*corev1.Pod)
	switch _, known := a.pods[pod.UID]; {
	case pod.DeletionTimestamp != nil:
		a.Delete(o)
	case !known:
		wanted, unwanted := context.WithCancel(a.ctx)
		a.pods[pod.UID] = unwanted
		a.work.Go(func() { a.note(a.runPod(pod, wanted)) })
	}
}

// Delete receives a deleted pod.
func (a *nullAgent) Delete(o metav1.Object) {
	if unwanted := a.pods[o.GetUID()]; unwanted != nil {
		unwanted()
	}
}

// Trouble ignores an error of the watch, because the watch is retried.
func (a *nullAgent) Trouble(error) {}

func (a *nullAgent) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil && a.ctx.Err() == nil {
		a.err = err
	}
}

// runPod starts the pod, patches its status, waits for the end of wanted, and deletes it.
func (a *nullAgent) runPod(pod *corev1.Pod, wanted context.Context) error {
	bare := a.b.floorPod(pod.Name) // without the token volume that the API server adds
	bare.UID = pod.UID
	if _, err := a.run.start(a.ctx, bare); err != nil {
		return fmt.Errorf("start pod %s: %w", pod.Name, err)
	}
	if err := a.ready(pod); err != nil {
		return fmt.Errorf("patch the status of pod %s: %w", pod.Name, err)
	}
	<-wanted.Done()
	if a.ctx.Err() != nil {
		return a.ctx.Err()
	}
	if err := a.run.stop(a.ctx, pod.Name); err != nil {
		return fmt.Errorf("stop pod %s: %w", pod.Name, err)
	}
	now := metav1.NewDeleteOptions(0)
	now.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
	err := a.b.api.Core.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Body(now).Do(a.ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	if err := a.run.remove(a.ctx, pod.Name); err != nil {
		return fmt.Errorf("remove pod %s: %w", pod.Name, err)
	}
	return os.RemoveAll(filepath.Join(a.dir, "pods", string(pod.UID)))
}

// ready patches the whole status of a running pod at once.
func (a *nullAgent) ready(pod *corev1.Pod) error {
	now, started := metav1.Now(), true
	var conditions []corev1.PodCondition
	for _, t := range []corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
	} {
		conditions = append(conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	c := pod.Spec.Containers[0]
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": corev1.PodStatus{
			Phase:      corev1.PodRunning,
			StartTime:  &now,
			Conditions: conditions,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: c.Name, Image: c.Image, Ready: true, Started: &started,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			}},
		},
	})
	if err != nil {
		return err
	}
	return a.b.api.Core.Patch(types.StrategicMergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("status").Body(patch).Do(a.ctx).Error()
}
