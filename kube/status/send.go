package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
)

// errPodGone is the cause of an error that says that the API server no longer has the pod's UID.
var errPodGone = errors.New("pod is gone")

// send sends one job: a patch if the status differs, then a delete if nothing of the pod is left on the node.
func (p *Publisher) send(ctx context.Context, e *entry, j job) {
	start := time.Now()
	pod, err := p.patch(ctx, j)
	j.gone = j.gone && (pod == nil || pod.DeletionTimestamp != nil) // else etcd was restored from a backup
	if err == nil && j.gone {
		err = p.delete(ctx, j)
	}
	if unsure(err) && p.replaced(ctx, j) {
		err = fmt.Errorf("%w: %w", errPodGone, err)
	}
	if err != nil && !errors.Is(err, errPodGone) && !errors.Is(ctx.Err(), context.Canceled) {
		p.cfg.Log.Log(ctx, p.levelOf(e, err), "cannot publish pod status, retrying",
			"pod", j.namespace+"/"+j.name, "podUID", j.uid, "took", time.Since(start), "err", err)
	}
	p.finished(e, j, pod, err)
	if pod != nil {
		p.cfg.Published(pod, time.Since(j.since))
	}
}

// patch sends the status of j and returns the pod as the API server has it then; nil if nothing differed.
func (p *Publisher) patch(ctx context.Context, j job) (*corev1.Pod, error) {
	body, err := j.patch()
	if err != nil {
		return nil, fmt.Errorf("encode status of pod %s/%s: %w", j.namespace, j.name, err)
	}
	if body == nil {
		return nil, nil
	}
	pod := &corev1.Pod{}
	err = client.BoundedWrite(ctx, func(ctx context.Context) error {
		return p.cfg.Client.Patch(types.StrategicMergePatchType).Namespace(j.namespace).Resource("pods").Name(j.name).
			SubResource("status").Body(body).MaxRetries(0).Do(ctx).Into(pod)
	})
	if err != nil {
		return nil, fmt.Errorf("patch status of pod %s/%s: %w", j.namespace, j.name, goneOr(err))
	}
	return pod, nil
}

// delete removes the pod from the API server immediately, unless a new pod of the same name has replaced it.
func (p *Publisher) delete(ctx context.Context, j job) error {
	now := &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &j.uid}}
	err := client.BoundedWrite(ctx, func(ctx context.Context) error {
		return p.cfg.Client.Delete().Namespace(j.namespace).Resource("pods").Name(j.name).Body(now).
			MaxRetries(0).Do(ctx).Error()
	})
	if err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", j.namespace, j.name, err)
	}
	return nil
}

// goneOr turns the API server's answers to a patch that say that a UID does not exist into errPodGone. A changed UID is
// an attempt to change an immutable field for a patch, or a conflict: see replaced.
func goneOr(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) && aboutUID(err) {
		return fmt.Errorf("%w: %w", errPodGone, err)
	}
	return err
}

// unsure reports whether the pod may be gone, and only replaced can tell. Only the text of a conflict says whether it
// is about the UID or about something else, and that text contains names that users choose. A delete is answered with
// 404 by an admission plugin, NodeRestriction, from what the API server has in memory, which may lack the pod after a
// start.
func unsure(err error) bool {
	return !errors.Is(err, errPodGone) && (apierrors.IsConflict(err) || apierrors.IsNotFound(err))
}

// replaced reports whether the API server no longer has the pod of j. It reads the pod from storage: a list is allowed
// to a node whichever node a new pod of this name is bound to.
func (p *Publisher) replaced(ctx context.Context, j job) bool {
	selector := fields.Set{"metadata.name": j.name, "spec.nodeName": j.node}.AsSelector()
	found := &corev1.PodList{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return p.cfg.Client.Get().Namespace(j.namespace).Resource("pods").
			VersionedParams(&metav1.ListOptions{FieldSelector: selector.String()}, client.Parameters).
			MaxRetries(0).Do(ctx).Into(found)
	})
	return err == nil && !slices.ContainsFunc(found.Items, func(pod corev1.Pod) bool { return pod.UID == j.uid })
}

// aboutUID reports whether the UID is among the fields that the API server refuses.
func aboutUID(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && slices.ContainsFunc(status.Status().Details.Causes,
		func(cause metav1.StatusCause) bool { return cause.Field == "metadata.uid" })
}

// finished records the result of j and queues e again if there is more to send.
func (p *Publisher) finished(e *entry, j job, pod *corev1.Pod, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.wake.Set()
	e.sending = false
	if pod != nil {
		e.see(pod)
	}
	if p.pods[j.uid] != e { // forgotten meanwhile
		return
	}
	if errors.Is(err, errPodGone) || (err == nil && j.gone) {
		p.noteServer(e, nil)
		p.drop(e)
		return
	}
	p.noteServer(e, err)
	if err != nil {
		p.retryLater(e, j, err)
		return
	}
	e.retry, e.fails = 0, false
	e.slow = false
	switch {
	case e.gen == j.gen:
		e.want = nil
	case e.queued != none: // there was another Set during the request
		p.list(e, time.Now())
	}
}
