package userns

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
)

// PodFiles are the directories of pods: *podfs.FS, where each method is described.
type PodFiles interface {
	Pods() ([]types.UID, error)
	ReadPodFile(pod types.UID, name string) ([]byte, error)
	WritePodFile(pod types.UID, name string, content []byte) error
	RemovePodFile(pod types.UID, name string) error
}

// Open returns the table of a node on which maxPods pods may run: its ranges come from the subordinate IDs of the user
// kubelet, and those that pods have from their files. Files that cannot be used are logged.
func Open(idsPerPod uint32, maxPods int, files PodFiles, log *slog.Logger) (*Table, error) {
	pool, err := subordinateIDs(owner)
	if err != nil {
		return nil, err
	}
	pods, err := files.Pods()
	if err != nil {
		return nil, err
	}
	table, bad, err := New(Config{
		IDsPerPod: idsPerPod,
		Pool:      pool,
		MaxPods:   maxPods,
		Files:     files,
	}, pods)
	for _, err := range bad {
		log.Warn("cannot use the IDs of a pod's user namespace; its containers keep running, but it starts no others, "+
			"and no pod gets new IDs while they are not known", "err", err)
	}
	return table, err
}
