package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// observe collects all facts about the pod. It asks the runtime only for what may have changed.
func (w *worker) observe(ctx context.Context) (podstate.Observed, error) {
	if err := w.observeRuntime(ctx); err != nil {
		return podstate.Observed{}, err
	}
	if w.facts.logged == nil && podutil.IsStatic(w.order.Pod) {
		w.readLogged()
	}
	o := podstate.Observed{
		Now:        time.Now(),
		Sandboxes:  w.facts.sandboxes,
		Containers: w.facts.containers,
		Logged:     w.facts.logged,
		Probes:     w.probeResults(),
		StopBegun:  w.published.stop.Reason != "",
		Memory:     w.memory.Recall(),
		Node:       w.cfg.planNode(),
	}
	o.Node.RecursiveReadOnly = w.cfg.Steps.RecursiveReadOnly(w.order.Pod, w.facts.readySandbox())
	o.ClaimsHeld = w.cfg.Claims.Holds(w.order.Pod.UID)
	o.DeviceHealth = w.cfg.deviceHealth(w.order.Pod)
	o.NetworkProblem = w.cfg.NetworkProblem(w.order.Pod.UID)
	if podutil.RestartsAll(&w.order.Pod.Spec) {
		mark, marked, err := w.cfg.PodFiles.ResetMark(w.order.Pod.UID)
		if err != nil && w.order.Stop == nil { // a pod that must end is not reset
			return o, err
		}
		if marked {
			o.ResetMark = podstate.ParseResetMark(mark)
		}
	}
	if plan.Clearing(w.order.Desired, o) {
		return o, w.observeDisk(&o)
	}
	return o, nil
}

// observeRuntime brings the facts from the runtime up to date.
func (w *worker) observeRuntime(ctx context.Context) error {
	if !w.facts.outdated() {
		return nil
	}
	w.explainObserving(nil)
	first := w.facts.instances == nil
	if err := w.facts.update(ctx, w.cfg.Runtime, w.order.Pod.UID, w.log); err != nil {
		return err
	}
	if first && len(w.facts.containers) > 0 && w.order.Stop == nil {
		w.cfg.Objects(w.order.Pod).Prime(w.order.Pod)
	}
	w.memory.See(w.order.Pod, w.facts.sandboxes, w.facts.containers, time.Now())
	return nil
}

// readLogged counts the attempts of which a static pod has logs. Where that is not possible, its containers may share a
// log with an earlier instance.
func (w *worker) readLogged() {
	w.facts.logged = map[string]uint32{}
	for _, c := range podutil.Containers(&w.order.Pod.Spec) {
		n, err := w.cfg.Logs.Attempts(&w.order.Pod.ObjectMeta, c.Name)
		if err != nil {
			w.log.Warn("cannot list the logs of a container", "container", c.Name, "err", err)
		}
		w.facts.logged[c.Name] = n
	}
}

// observeDisk adds what the pod has on the disk and in the cgroup tree. Only a pod whose containers have ended needs
// that: its containers are stopped also while the disk cannot be read.
func (w *worker) observeDisk(o *podstate.Observed) error {
	pod := w.order.Pod
	var err error
	if o.VolumesOnDisk, err = w.cfg.Steps.ListVolumes(pod.UID, &w.left); err != nil {
		return err
	}
	present, unknown := w.cfg.PodFiles.HasPodDir(pod.UID)
	if !present && unknown == nil {
		present, unknown = w.cfg.Logs.Has(&pod.ObjectMeta)
	}
	o.DirOnDisk = present || unknown != nil // the step that removes it reports why it cannot be read
	o.CgroupExists, err = w.cfg.Cgroups.Exists(pod)
	return err
}

// linkLogs links the logs of the instances that have started, once. It does not depend on the step that starts an
// instance: its answer may be lost, or the agent may be killed before it.
func (w *worker) linkLogs() {
	if w.order.Stop.Is(podstate.StopOrphaned) {
		return // the name of the pod may not be known
	}
	for i := range w.facts.containers {
		c := &w.facts.containers[i]
		known := w.facts.instances[c.ID]
		if c.State == podstate.ContainerCreated || known.linked {
			continue
		}
		known.linked = true
		if err := w.cfg.Steps.LinkLog(w.order.Pod, c); err != nil {
			w.log.Warn("cannot link the log of a container for log collectors", "container", c.Name, "err", err)
		}
	}
}

// probeResults returns the newest results of the probes of the pod's containers.
func (w *worker) probeResults() map[string]podstate.ProbeResults {
	if len(w.published.probed) == 0 {
		return nil
	}
	return w.cfg.Probes.Results(w.order.Pod.UID)
}

// deviceHealth returns the health of the devices of a pod, by container: nil for a pod without devices, an empty health
// for what is not known yet.
func (c *Config) deviceHealth(pod *corev1.Pod) map[string][]corev1.ResourceStatus {
	if !c.DeviceHealth {
		return nil
	}
	all := c.Devices.Health(pod.UID)
	for container, claimed := range c.Claims.Health(pod) {
		if all == nil {
			all = map[string][]corev1.ResourceStatus{}
		}
		all[container] = append(all[container], claimed...)
	}
	return all
}
