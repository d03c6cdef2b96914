package podfs

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/atomicfile"
)

// resetMarker is the file of a pod's directory that marks a reset.
const resetMarker = "nodelet-reset"

// MarkReset writes the marker file of a pod reset, in which all containers of the pod are removed and start again. The
// file says how far the reset is. It is durable: what follows it must not outlast a power failure without it.
func (d *PodDirs) MarkReset(uid types.UID, mark string) error {
	if err := d.writePodFile(uid, resetMarker, []byte(mark), d.openPod, atomicfile.Durable); err != nil {
		return fmt.Errorf("mark reset of all containers: %w", err)
	}
	return nil
}

// UnmarkReset removes the marker file, if there is one.
func (d *PodDirs) UnmarkReset(uid types.UID) error { return d.RemovePodFile(uid, resetMarker) }

// ResetMark returns the content of the marker file of a reset, if the pod's directory has one.
func (d *PodDirs) ResetMark(uid types.UID) (mark string, marked bool, err error) {
	content, err := d.ReadPodFile(uid, resetMarker)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	return string(content), err == nil, err
}
