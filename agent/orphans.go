package agent

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// orphans finds what pods that no source knows have left on the node, and starts workers that remove it. Only the loop
// uses it.
type orphans struct{ *dispatcher }

// adoptListed starts workers that end the pods of the runtime which must not run: those that no source knows, and
// static pods whose name a newer one has taken.
func (o *orphans) adoptListed(ctx context.Context) {
	for uid, pod := range o.table.listed {
		if o.table.workers[uid] == nil && (o.table.unwanted(uid) || o.table.superseded(pod)) {
			orphan := unknownPod(uid, pod.Namespace, pod.Name)
			orphan.Spec.TerminationGracePeriodSeconds = pod.Grace
			o.adopt(ctx, orphan)
		}
	}
}

// adoptFromDisk starts workers that clean up after pods which have left only a directory, logs, a cgroup, a volume or a
// prepared resource claim. The kubelet removes logs later than the rest, so it leaves them when it is replaced. A
// directory whose name is no UID, such as lost+found, belongs to no pod.
func (o *orphans) adoptFromDisk(ctx context.Context) {
	dirs, err := o.cfg.Volumes.Pods()
	if err != nil {
		o.cfg.Log.Warn("cannot list the pods with directories or volumes", "err", err)
	}
	groups, err := o.cfg.Cgroups.Pods()
	if err != nil {
		o.cfg.Log.Warn("cannot list the pod cgroups", "err", err)
	}
	logs, err := o.cfg.Logs.Pods()
	if err != nil {
		o.cfg.Log.Warn("cannot list the pods with logs", "err", err)
	}
	dirs = slices.Concat(dirs, groups, logs)
	dirs = append(dirs, o.cfg.Claims.Pods()...)
	for _, uid := range dirs {
		if podutil.ValidUID(uid) && o.table.workers[uid] == nil && o.table.unwanted(uid) {
			o.adopt(ctx, unknownPod(uid, "", ""))
		}
	}
}

// unknownPod returns a pod with what its traces on the node have recorded.
func unknownPod(uid types.UID, namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: namespace, Name: name}}
}
