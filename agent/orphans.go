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
type orphans struct {
	*dispatcher
	// logs are the pods that have left nothing but logs, as listed last, without those that have been adopted since.
	logs []types.UID
}

// mostLogs is how many pods that have left nothing but logs are cleaned up at a time: any pod that can write to the
// directory of the logs can make as many directories as it wants.
const mostLogs = 32

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
// prepared resource claim. The kubelet removes logs later than the rest, so it leaves them when it is replaced.
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
	for _, uid := range slices.Concat(dirs, groups, o.cfg.Claims.Pods()) {
		o.adoptTraces(ctx, uid)
	}
	o.logs = logs
	o.adoptLogs(ctx)
}

// adoptLogs starts workers for pods of which only logs are left, as many as may run at a time. It goes on when one of
// them has ended.
func (o *orphans) adoptLogs(ctx context.Context) {
	running := 0
	for _, e := range o.table.workers {
		if e.logsOnly {
			running++
		}
	}
	for ; running < mostLogs && len(o.logs) > 0; o.logs = o.logs[1:] {
		if e := o.adoptTraces(ctx, o.logs[0]); e != nil {
			e.logsOnly = true
			running++
		}
	}
}

// adoptTraces starts a worker for a pod that has left something, and returns its entry; nil if the pod has a worker or
// may be wanted, or if the name is not the UID of a pod.
func (o *orphans) adoptTraces(ctx context.Context, uid types.UID) *entry {
	if !podutil.ValidUID(uid) || !o.table.gone(uid) {
		return nil
	}
	return o.adopt(ctx, unknownPod(uid, "", ""))
}

// unknownPod returns a pod with what its traces on the node have recorded.
func unknownPod(uid types.UID, namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: namespace, Name: name}}
}
