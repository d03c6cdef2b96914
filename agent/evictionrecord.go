package agent

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// evictionFile is the file in a pod's directory that records its eviction. It is written before the pod's containers
// are stopped, and removed with the directory. Without it, an agent that restarts before the API server has the status
// would start the pod again, although another pod may have taken its resources. A static pod has no such record: it
// starts again.
const evictionFile = "nodelet-eviction.json"

// evictionRecord is the content of evictionFile.
type evictionRecord struct {
	Reason   string    `json:"reason"`
	Message  string    `json:"message"`
	Own      bool      `json:"own,omitempty"`
	Deadline time.Time `json:"deadline"`
}

// recordEviction records once that the pod is being evicted.
func (w *worker) recordEviction() {
	stop, pod := w.desired.Stop, w.desired.Pod
	if !stop.Is(podstate.StopEvicted) || w.reported.eviction || podutil.IsStatic(pod) {
		return
	}
	w.reported.eviction = true
	content, err := json.Marshal(evictionRecord{stop.Reason, stop.Message, stop.Own, stop.Deadline})
	if err == nil {
		err = w.cfg.PodFiles.NotePodFile(pod.UID, evictionFile, content)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) { // without a directory, nothing of the pod runs
		w.log.Warn("cannot record the eviction of the pod, an agent that restarts now would start it again", "err", err)
	}
}

// recordedEviction returns how a pod has to end that an earlier run of the agent was evicting; nil for other pods.
func (a *admitter) recordedEviction(pod *corev1.Pod) *podstate.Stop {
	if podutil.IsStatic(pod) {
		return nil
	}
	content, err := a.cfg.PodFiles.ReadPodFile(pod.UID, evictionFile)
	var record evictionRecord
	if err == nil {
		err = json.Unmarshal(content, &record)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		a.log.Warn("cannot read whether the pod was being evicted, it stays",
			"pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID, "err", err)
		return nil
	}
	grace := min(time.Until(record.Deadline), podutil.GracePeriod(pod))
	return (&Eviction{Reason: record.Reason, Message: record.Message, Own: record.Own, Grace: grace}).stop(pod)
}
