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

// watchRuntime passes the runtime's events on as hints, and lists all its pods at each new connection and now and
// then; often until that has succeeded once, for static pods wait for it.
func (s *Supervisor) watchRuntime(ctx context.Context) {
	every, wait := relistEvery, relistBlind
	blind := make(chan struct{})
	go func() {
		err := s.hands.Runtime.Watch(ctx, s.RuntimeChanged, s.relist.Set)
		if ctx.Err() == nil {
			s.log.Warn("the runtime gives no events, so its pods are listed often", "err", err, "every", relistBlind)
			close(blind)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-blind:
			every, wait, blind = relistBlind, relistBlind, nil
		case <-s.relist:
		case <-time.After(wait):
		}
		if s.list(ctx) {
			wait = every
		}
	}
}

// list hands the runtime's pods to the supervisor's loop. It tells whether the runtime has listed them.
func (s *Supervisor) list(ctx context.Context) bool {
	began := time.Now()
	all, err := s.hands.Runtime.Relist(ctx)
	s.hands.Metrics.Relisted(began, time.Since(began))
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("cannot list the runtime's pods", "err", err)
		}
		return false
	}
	s.post(func() { s.compare(ctx, all) })
	return true
}

// compare wakes the workers whose facts have moved since the last relist, and gives pods that have to go a worker
// that ends them.
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
	s.discardFitting() // what is refused may fit now, by whatever has changed
	if before == nil {
		s.reconcile(ctx) // all pods have waited for this
	}
	s.adoptListed(ctx)
	s.adoptFromDisk(ctx)
	s.publishPresent()
}

// adoptListed gives pods of the runtime that have to go a worker that ends them: those that nobody wants, and static
// pods of which another has the name by now.
func (s *Supervisor) adoptListed(ctx context.Context) {
	for uid, pod := range s.listed {
		if s.workers[uid] == nil && (s.unwanted(uid) || s.superseded(pod)) {
			orphan := unknownPod(uid, pod.Namespace, pod.Name)
			orphan.Spec.TerminationGracePeriodSeconds = pod.Grace
			s.adopt(ctx, orphan)
		}
	}
}

// superseded: the manifest of a static pod has changed while the agent was away. Its own source says so; for the
// others, of which one may be what the new pod has to serve, nobody waits.
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

// adoptFromDisk gives pods that left only a directory, a cgroup, a claim on a volume or a prepared resource claim
// behind a worker that cleans up.
func (s *Supervisor) adoptFromDisk(ctx context.Context) {
	dirs, err := s.hands.Volumes.Pods()
	if err != nil {
		s.log.Warn("cannot list the pods with directories or volumes", "err", err)
	}
	groups, err := s.hands.podCgroups()
	if err != nil {
		s.log.Warn("cannot list the pod cgroups", "err", err)
	}
	for _, pod := range groups {
		dirs = append(dirs, pod.UID)
	}
	dirs = append(dirs, s.hands.Claims.Pods()...)
	for _, uid := range dirs {
		if s.workers[uid] == nil && s.unwanted(uid) {
			s.adopt(ctx, unknownPod(uid, "", ""))
		}
	}
}

// unwanted: every source has spoken and none knows the pod. While a manifest cannot be read since the start, any pod
// may be one of its own, so all are spared.
func (s *Supervisor) unwanted(uid types.UID) bool {
	_, wanted := s.set.Pods[uid]
	return s.set.Synced && !s.set.Unknown() && !wanted
}

// adopt gives a pod that no source knows a worker whose only task is to end it.
func (s *Supervisor) adopt(ctx context.Context, pod *corev1.Pod) {
	s.log.Info("orphaned pod found, removing it", "pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID)
	s.orphan(s.begin(ctx, pod))
	s.publishPresent()
}

// unknownPod is what the traces of a pod say of it.
func unknownPod(uid types.UID, namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: namespace, Name: name}}
}
