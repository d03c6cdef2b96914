package podfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/boundedfile"
	"github.com/nodelet/nodelet/kube/poddir"
)

// podFileMax bounds a file that ReadPodFile reads.
const podFileMax = 1 << 20

// WritePodFile writes a small file into a pod's directory, which it makes if there is none. A reader sees the whole old
// content or the whole new one, also after a power failure.
func (d *PodDirs) WritePodFile(uid types.UID, name string, content []byte) error {
	return d.writePodFile(uid, name, content, d.makePod, atomicfile.Whole)
}

// NotePodFile is WritePodFile for data that need not survive a power failure: it does not wait for the disk. The error
// is os.ErrNotExist if the pod has no directory.
func (d *PodDirs) NotePodFile(uid types.UID, name string, content []byte) error {
	return d.writePodFile(uid, name, content, d.openPod, atomicfile.NotDurable)
}

func (d *PodDirs) writePodFile(uid types.UID, name string, content []byte,
	open func(types.UID) (*os.File, error), durability atomicfile.Durability) error {
	if err := poddir.CheckName("file of a pod", name); err != nil {
		return err
	}
	pod, err := open(uid)
	if err != nil {
		return fmt.Errorf("write %s of pod %s: %w", name, uid, err)
	}
	defer pod.Close()
	root, err := os.OpenRoot(fdPath(pod))
	if err == nil {
		err = errors.Join(atomicfile.WriteBelow(root, name, content, 0o600, durability), root.Close())
	}
	if err != nil {
		return fmt.Errorf("write %s of pod %s: %w", name, uid, err)
	}
	return nil
}

// RemovePodFile removes what WritePodFile has written, if it is there.
func (d *PodDirs) RemovePodFile(uid types.UID, name string) error {
	if err := poddir.CheckName("file of a pod", name); err != nil {
		return err
	}
	pod, err := d.openPod(uid)
	if err == nil {
		err = unix.Unlinkat(int(pod.Fd()), name, 0)
		pod.Close()
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s of pod %s: %w", name, uid, err)
	}
	return nil
}

// ReadPodFile returns what WritePodFile has written. The error is os.ErrNotExist if there is no such file.
func (d *PodDirs) ReadPodFile(uid types.UID, name string) ([]byte, error) {
	if err := poddir.CheckName("file of a pod", name); err != nil {
		return nil, err
	}
	pod, err := d.openPod(uid)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	f, err := beneath.OpenRegular(pod, name, beneath.NoLinks)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return boundedfile.ReadAll(f, podFileMax)
}

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
