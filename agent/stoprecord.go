package agent

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/host/machine"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// stopFile is the file in a pod's directory that records how the pod has to end. It is written before the pod's
// containers are stopped, and removed with the directory. Without it, an agent that restarts before the API server has
// the status would start an evicted pod again, although another pod may have taken its resources. And each restart
// would begin the grace period again, so that a pod with a long one might never end. An evicted static pod has no
// such record: it starts again.
const stopFile = "nodelet-stop.json"

// stopRecord is the content of stopFile. One without a deadline is void.
type stopRecord struct {
	// Reason, Message and Own are those of an eviction. A pod that was deleted or orphaned only has a deadline.
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
	Own      bool      `json:"own,omitempty"`
	Deadline time.Time `json:"deadline,omitzero"`
	// Boot is the boot of the machine in which the record was written, and Uptime the uptime of the machine at the
	// deadline. While that boot lasts they count, because the wall clock may be set.
	Boot   string        `json:"boot,omitempty"`
	Uptime time.Duration `json:"uptime,omitempty"` // ns
}

// stop returns the recorded stop for a cause, with what is left of the grace period. That is never more than the pod
// has in all: the machine may have booted with a clock that is behind.
func (r *stopRecord) stop(pod *corev1.Pod, cause podstate.StopCause) *podstate.Stop {
	left := min(time.Until(r.Deadline), podstate.EndGrace(podutil.GracePeriod(pod)))
	return &podstate.Stop{
		Cause:    cause,
		Deadline: time.Now().Add(left),
		Reason:   r.Reason,
		Message:  r.Message,
		Own:      r.Own,
	}
}

// writeStop replaces the record of a pod. A pod without a directory needs none: nothing of it runs.
func (c *Config) writeStop(pod types.UID, record stopRecord) error {
	if boot, err := machine.BootID(); err == nil && !record.Deadline.IsZero() {
		record.Boot, record.Uptime = boot, c.Uptime()+time.Until(record.Deadline)
	}
	content, err := json.Marshal(record)
	if err == nil {
		err = c.PodFiles.NotePodFile(pod, stopFile, content)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// recordStop records once how the pod has to end.
func (w *worker) recordStop(stop *podstate.Stop) {
	if stop == nil {
		return
	}
	pod := w.order.Pod
	record := stopRecord{Reason: stop.Reason, Message: stop.Message, Own: stop.Own, Deadline: stop.Deadline}
	if record == w.published.stop {
		return
	}
	w.published.stop = record
	if stop.Is(podstate.StopEvicted) && podutil.IsStatic(pod) {
		return
	}
	if err := w.cfg.writeStop(pod.UID, record); err != nil {
		w.log.Warn("cannot record how the pod ends, an agent that restarts now would begin its grace period again, "+
			"or start the pod again if it is evicted", "err", err)
	}
}

// recordedStop returns how a pod has to end that an earlier run of the agent was stopping; nil for other pods.
func (c *Config) recordedStop(pod *corev1.Pod) *stopRecord {
	content, err := c.PodFiles.ReadPodFile(pod.UID, stopFile)
	record := &stopRecord{}
	if err == nil {
		err = json.Unmarshal(content, record)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		c.Log.Warn("cannot read how the pod was ending, its grace period begins again; if it was being evicted, it stays",
			"pod", podutil.Name(pod), "podUID", pod.UID, "err", err)
		return nil
	case record.Deadline.IsZero():
		return nil
	}
	if boot, err := machine.BootID(); err == nil && boot == record.Boot {
		record.Deadline = time.Now().Add(record.Uptime - c.Uptime())
	}
	return record
}

// resumeStop goes on with the end of a pod that an earlier run of the agent has begun, for the same reason. A pod that
// its source has again, such as one whose manifest was put back, stays; its record must not count at its next end.
func (d *dispatcher) resumeStop(e *entry) {
	pod, record := e.source, d.cfg.recordedStop(e.source)
	switch {
	case record == nil:
	case pod.DeletionTimestamp != nil:
		e.stop = record.stop(pod, podstate.StopDeleted).Stricter(e.stop)
	case record.Reason != "" && !podutil.IsStatic(pod):
		e.stop = record.stop(pod, podstate.StopEvicted).Stricter(e.stop)
	default:
		if err := d.cfg.writeStop(pod.UID, stopRecord{}); err != nil {
			d.cfg.Log.Warn("cannot clear the record of the pod's earlier end, its next grace period may be shorter",
				"pod", podutil.Name(pod), "podUID", pod.UID, "err", err)
		}
	}
}
