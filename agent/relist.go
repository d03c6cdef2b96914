package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
)

// watchRuntime passes the runtime's events on as hints. It lists all pods of the runtime at each new connection and
// from time to time; often until the first list has succeeded, as all pods wait for that.
func (s *Supervisor) watchRuntime(ctx context.Context) {
	every, wait := relistEvery, relistWithoutEvents
	noEvents := make(chan struct{})
	go func() {
		err := s.cfg.Runtime.Watch(ctx, s.RuntimeChanged, s.relist.Set)
		if ctx.Err() == nil {
			s.log.Warn("the runtime sends no events, listing its pods often", "err", err, "every", relistWithoutEvents)
			close(noEvents)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-noEvents:
			every, wait, noEvents = relistWithoutEvents, relistWithoutEvents, nil
		case <-s.relist:
		case <-time.After(wait):
		}
		if s.list(ctx) {
			wait = every
		}
	}
}

// list passes the runtime's pods to the supervisor's loop. It reports whether the runtime has listed them.
func (s *Supervisor) list(ctx context.Context) bool {
	began := time.Now()
	all, err := s.cfg.Runtime.Relist(ctx)
	s.cfg.Metrics.Relisted(began, time.Since(began))
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("cannot list the runtime's pods, trying again", "err", err)
		}
		return false
	}
	s.post(func() { s.compare(ctx, all) })
	return true
}

// compare notifies the workers of pods that have changed since the last list, and starts workers that end the pods
// which must not run.
func (s *Supervisor) compare(ctx context.Context, all []cri.PodSummary) {
	before := s.listed
	s.listed = make(map[types.UID]cri.PodSummary, len(all))
	for _, pod := range all {
		s.listed[pod.UID] = pod
	}
	for uid, e := range s.workers {
		if s.listed[uid].Fingerprint != before[uid].Fingerprint {
			e.worker.notify(hintRuntime)
		}
	}
	s.discardFitting() // something may have changed without an event
	if before == nil {
		s.reconcile(ctx) // all pods have waited for this
	}
	s.adoptListed(ctx)
	s.adoptFromDisk(ctx)
	s.publishPresent()
}

// adoptListed starts workers that end the pods of the runtime which must not run: those that no source knows, and
// static pods whose name a newer one has taken.
func (s *Supervisor) adoptListed(ctx context.Context) {
	for uid, pod := range s.listed {
		if s.workers[uid] == nil && (s.unwanted(uid) || s.superseded(pod)) {
			orphan := unknownPod(uid, pod.Namespace, pod.Name)
			orphan.Spec.TerminationGracePeriodSeconds = pod.Grace
			s.adopt(ctx, orphan)
		}
	}
}

// superseded reports whether the manifest of a static pod has changed while the agent was not running. The source of
// the manifest decides; other sources are not waited for, as the new pod may be what they depend on.
func (s *Supervisor) superseded(old cri.PodSummary) bool {
	if _, wanted := s.set.Pods[old.UID]; wanted || !pods.Source(old.Source).Static() {
		return false
	}
	for _, pod := range s.set.Pods {
		if pod.Name == old.Name && pod.Namespace == old.Namespace && podutil.IsStatic(pod) {
			return true
		}
	}
	return false
}

// adoptFromDisk starts workers that clean up after pods which have left only a directory, a cgroup, a volume or a
// prepared resource claim.
func (s *Supervisor) adoptFromDisk(ctx context.Context) {
	dirs, err := s.cfg.Volumes.Pods()
	if err != nil {
		s.log.Warn("cannot list the pods with directories or volumes", "err", err)
	}
	groups, err := s.cfg.Cgroups.Pods()
	if err != nil {
		s.log.Warn("cannot list the pod cgroups", "err", err)
	}
	dirs = append(dirs, groups...)
	dirs = append(dirs, s.cfg.Claims.Pods()...)
	for _, uid := range dirs {
		if s.workers[uid] == nil && s.unwanted(uid) {
			s.adopt(ctx, unknownPod(uid, "", ""))
		}
	}
}

// unwanted reports whether every source has synced and none knows the pod. While a manifest has been unreadable since
// the start, any pod may come from it, so none is unwanted.
func (s *Supervisor) unwanted(uid types.UID) bool {
	_, wanted := s.set.Pods[uid]
	return s.set.Synced && !s.set.Unknown() && !wanted
}

// adopt starts a worker that ends a pod that no source knows.
func (s *Supervisor) adopt(ctx context.Context, pod *corev1.Pod) {
	s.log.Info("orphaned pod found, removing it", "pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID)
	s.orphan(s.begin(ctx, pod))
	s.publishPresent()
}

// unknownPod returns a pod with what its traces on the node have recorded.
func unknownPod(uid types.UID, namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: namespace, Name: name}}
}
