package podfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/noatime"
	"github.com/nodelet/nodelet/kube/pluginname"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/poddir"
)

// PodDirs are the directories of the pods, and the files of this agent in them. It is safe for concurrent use.
type PodDirs struct {
	podsDir string
}

// hostPath returns the path of a volume's directory.
func (d *PodDirs) hostPath(uid types.UID, o OnDisk) string {
	return filepath.Join(d.podsDir, string(uid), o.path())
}

// Pods returns the pods that have a directory, including pods that no longer exist. A directory whose name is no UID,
// such as lost+found or a copy that somebody made, belongs to no pod.
func (d *PodDirs) Pods() ([]types.UID, error) {
	entries, err := noatime.ReadDir(func(flags int) (*os.File, error) { return os.OpenFile(d.podsDir, flags, 0) })
	if err != nil {
		return nil, fmt.Errorf("list pod directories: %w", err)
	}
	var uids []types.UID
	for _, e := range entries {
		if uid := types.UID(e.Name()); e.IsDir() && podutil.ValidUID(uid) {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// HasPodDir reports whether a pod has a directory. Every error but ENOENT is returned: the directory may exist.
func (d *PodDirs) HasPodDir(uid types.UID) (bool, error) {
	_, err := os.Lstat(filepath.Join(d.podsDir, string(uid)))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("look up pod directory: %w", err)
}

// MakePodDir makes the directory of a pod. The directories in it are made when they are needed: each costs time, most
// of all on a file system from which many files were just removed.
func (d *PodDirs) MakePodDir(uid types.UID) error {
	pod, err := d.makePod(uid)
	if err != nil {
		return fmt.Errorf("make pod directory: %w", err)
	}
	return pod.Close()
}

// WriteHosts writes the file that containers of a pod see as /etc/hosts. It writes in place, because running containers
// have this file mounted.
func (d *PodDirs) WriteHosts(uid types.UID, content []byte) error {
	pod, err := d.makePod(uid)
	if err != nil {
		return fmt.Errorf("write hosts file: %w", err)
	}
	defer pod.Close()
	if err := writeInPlace(pod, poddir.Hosts, content); err != nil {
		return fmt.Errorf("write hosts file: %w", err)
	}
	return nil
}

// TerminationLog makes the empty file to which a container may write its termination message. The caller chooses the
// name, one for each start of a container. An existing file keeps its content.
func (d *PodDirs) TerminationLog(uid types.UID, container, name string) error {
	if err := errors.Join(poddir.CheckName("container", container),
		poddir.CheckName("termination log", name)); err != nil {
		return err
	}
	pod, err := d.makePod(uid)
	if err != nil {
		return fmt.Errorf("make termination log: %w", err)
	}
	defer pod.Close()
	dir, err := makeDir(pod, filepath.Join(poddir.Containers, container), privateDir)
	if err != nil {
		return fmt.Errorf("make termination log: %w", err)
	}
	defer dir.Close()
	f, err := openFile(dir, name, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return fmt.Errorf("make termination log: %w", err)
	}
	defer f.Close()
	if err := f.Chmod(0o666); err != nil { // for every user of the container
		return fmt.Errorf("make termination log: %w", err)
	}
	return nil
}

func writeInPlace(dir *os.File, name string, content []byte) error {
	f, err := openFile(dir, name, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	// Cut a longer file only now, so that no reader sees an empty one.
	return errors.Join(err, f.Truncate(int64(len(content))), f.Chmod(0o644), f.Close())
}

// openFile opens or creates a file of the tree that only this agent writes.
func openFile(dir *os.File, name string, flags int) (*os.File, error) {
	return beneath.Create(dir, name, flags|unix.O_NONBLOCK, 0o600, beneath.NoLinks)
}

// RemovePodDir removes the directory of a pod whose volumes are unmounted. It returns an error, and removes nothing, if
// there still is a volume, also one of another owner, or a mount below the directory.
func (d *PodDirs) RemovePodDir(ctx context.Context, uid types.UID) error {
	if err := d.removePodDir(ctx, uid); err != nil {
		return fmt.Errorf("remove directory of pod %s: %w", uid, err)
	}
	return nil
}

func (d *PodDirs) removePodDir(ctx context.Context, uid types.UID) error {
	return d.inPod(uid, func(pod *os.File) error {
		if err := removeEmptyVolumes(pod); err != nil {
			return err
		}
		if err := unmountSubpaths(ctx, pod, ""); err != nil {
			return err
		}
		pods, err := os.Open(d.podsDir)
		if err != nil {
			return err
		}
		defer pods.Close()
		return removeTree(ctx, pods, string(uid))
	})
}

// removeEmptyVolumes removes the volumes directory of a pod if all volumes in it are empty. It only calls rmdir: what
// is in a volume may be data of a user.
func removeEmptyVolumes(pod *os.File) error {
	err := eachDir(pod, poddir.Volumes, func(volumes, plugin *os.File, pluginName string) error {
		names, err := plugin.Readdirnames(-1)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := rmdir(plugin, name); err != nil {
				return fmt.Errorf("volume %q of %s is still there, unmount it first: %w",
					name, pluginname.FromDirectory(pluginName), err)
			}
		}
		return rmdir(volumes, pluginName)
	})
	if err != nil {
		return err
	}
	return rmdir(pod, poddir.Volumes)
}

// rmdir removes an empty directory. It is no error if there is none.
func rmdir(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return pathError("rmdir", dir, name, err)
	}
	return nil
}
