package podfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// resetNote is the file of a pod's directory that notes a reset. It is empty.
const resetNote = "nodelet-reset"

// NoteReset writes the marker file of a pod reset: the pod's containers are removed so that all start again.
func (d *PodDirs) NoteReset(uid types.UID) error {
	pod, err := d.openPod(uid)
	if err != nil {
		return fmt.Errorf("note reset of all containers: %w", err)
	}
	defer pod.Close()
	f, err := openFile(pod, resetNote, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return fmt.Errorf("note reset of all containers: %w", err)
	}
	if err := errors.Join(f.Close(), pod.Sync()); err != nil { // what follows it must not outlast a power cut without it
		return fmt.Errorf("note reset of all containers: %w", err)
	}
	return nil
}

// ForgetReset takes the note away; none is fine.
func (d *PodDirs) ForgetReset(uid types.UID) error {
	pod, err := d.openPod(uid)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = unix.Unlinkat(int(pod.Fd()), resetNote, 0)
		pod.Close()
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forget reset of all containers: %w", err)
	}
	return nil
}

// ResetNoted reports whether the pod's directory has the marker file of a reset.
func (d *PodDirs) ResetNoted(uid types.UID) (bool, error) {
	_, err := os.Lstat(filepath.Join(d.podsDir, string(uid), resetNote))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
