package allocation

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// recordFile is the file in a pod's directory that records what the pod holds, once that may differ from its spec. Its
// name is older than the word allocation; nodes have such files.
const recordFile = "granted-resources"

// Files are files in the directories of pods: *podfs.FS.
type Files interface {
	ReadPodFile(pod types.UID, name string) ([]byte, error)
	WritePodFile(pod types.UID, name string, content []byte) error
}

// Store records what pods hold: in their directories, and also for the kubelet.
type Store struct {
	files   Files
	kubelet kubeletFile
	log     *slog.Logger
}

// NewStore makes a store. gone reports whether a pod is known to have gone.
func NewStore(files Files, pods AllocatedPods, gone func(types.UID) bool, log *slog.Logger) *Store {
	return &Store{files, kubeletFile{file: pods, gone: gone, log: log}, log}
}

// Update brings the resources of a pod in line with a new version of it. mayResize is false for one that ends or was
// refused. If it asks for a resize, what is recorded follows from the decision.
func (s *Store) Update(r *Resources, pod *corev1.Pod, mayResize bool) {
	if r.allocated == nil {
		r.allocated = s.load(pod)
	}
	r.update(pod, mayResize)
	if !r.Undecided() {
		s.kubelet.keep(pod, r, false)
	}
}

// Decide allocates what the spec of a pod asks for; if pending is not nil, that is why it does not.
func (s *Store) Decide(r *Resources, pod *corev1.Pod, pending *podstate.PendingResize) {
	if pending == nil {
		r.resize(pod)
	}
	r.pending = pending
	s.record(r.allocated, pod)
	s.kubelet.keep(pod, r, true)
}

// Flush writes the file for the kubelet if decisions or updates have changed it.
func (s *Store) Flush() { s.kubelet.save() }

// load returns what a pod holds that is new to this run of the agent. An earlier run has recorded it if it may differ
// from the spec. Without a record, or if a kubelet has resized the pod since, the API shows it.
func (s *Store) load(pod *corev1.Pod) *allocation {
	held, err := s.read(pod.UID)
	switch {
	case err == nil && !held.outdated(pod):
		return held
	case err != nil && !errors.Is(err, os.ErrNotExist):
		s.log.Warn("cannot read the resources allocated to a pod, taking them from its status",
			"pod", podutil.Name(pod), "podUID", pod.UID, "err", err)
	}
	if pod.Status.StartTime == nil {
		return desiredResources(pod)
	}
	shown := allocationOf(pod)
	if err == nil {
		shown.Before = held.Before // these instances have been resized, by whichever agent
	}
	return shown
}

func (s *Store) read(uid types.UID) (*allocation, error) {
	content, err := s.files.ReadPodFile(uid, recordFile)
	if err != nil {
		return nil, err
	}
	held := &allocation{}
	if err = json.Unmarshal(content, held); err == nil && len(held.Containers) == 0 {
		err = errors.New(recordFile + " names no container")
	}
	return held, err
}

// record writes the record of what a pod holds.
func (s *Store) record(held *allocation, pod *corev1.Pod) {
	content, err := json.Marshal(held)
	if err == nil {
		err = s.files.WritePodFile(pod.UID, recordFile, content)
	}
	if err != nil {
		s.log.Warn("cannot record the resources allocated to a pod; after a restart they are taken from its status",
			"pod", podutil.Name(pod), "podUID", pod.UID, "err", err)
	}
}
