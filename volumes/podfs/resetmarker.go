package podfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// resetMarker is the file of a pod's directory that marks a reset. It is empty.
const resetMarker = "nodelet-reset"

// MarkReset writes the marker file of a pod reset: the pod's containers are removed so that all start again.
func (d *PodDirs) MarkReset(uid types.UID) error {
	pod, err := d.openPod(uid)
	if err != nil {
		return fmt.Errorf("mark reset of all containers: %w", err)
	}
	defer pod.Close()
	f, err := openFile(pod, resetMarker, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return fmt.Errorf("mark reset of all containers: %w", err)
	}
	if err := errors.Join(f.Close(), pod.Sync()); err != nil { // what follows it must not outlast a power cut without it
		return fmt.Errorf("mark reset of all containers: %w", err)
	}
	return nil
}

// UnmarkReset removes the marker file, if there is one.
func (d *PodDirs) UnmarkReset(uid types.UID) error {
	pod, err := d.openPod(uid)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = unix.Unlinkat(int(pod.Fd()), resetMarker, 0)
		pod.Close()
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmark reset of all containers: %w", err)
	}
	return nil
}

// ResetMarked reports whether the pod's directory has the marker file of a reset.
func (d *PodDirs) ResetMarked(uid types.UID) (bool, error) {
	_, err := os.Lstat(filepath.Join(d.podsDir, string(uid), resetMarker))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
