package podfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
)

// Unmount removes a volume that List has returned: first the bind mounts of its subPaths, then what is mounted on it,
// then its content, unless it outlives the pod. It deletes nothing that lies on a mount below the volume; the error
// names such a mount. The containers of the pod must have ended.
func (v *FS) Unmount(ctx context.Context, uid types.UID, on OnDisk) error {
	if err := v.unmount(ctx, uid, on); err != nil {
		return fmt.Errorf("unmount volume %q: %w", on.Name, err)
	}
	switch on.Plugin {
	case pluginname.ConfigMap:
		v.onDisk.forget(uid, on.Name)
	case pluginname.EmptyDir:
		v.made.forget(uid, filepath.Join(poddir.Subpaths, on.Name))
	}
	return nil
}

func (v *FS) unmount(ctx context.Context, uid types.UID, on OnDisk) error {
	if err := poddir.CheckName("volume", on.Name); err != nil {
		return err
	}
	switch on.Plugin {
	case pluginname.ConfigMap, pluginname.Secret, pluginname.Projected, pluginname.DownwardAPI, pluginname.EmptyDir,
		pluginname.Local, pluginname.NFS:
	case pluginname.HostPath: // has no directory, but may have subPaths
	case pluginname.ISCSI: // made by package csi; what it has left is removed here
	case pluginname.GitRepo: // never made; a kubelet may have left it
	default:
		return fmt.Errorf("plugin %q is %w by this node agent", on.Plugin, ErrUnsupported)
	}
	return v.inPod(uid, func(pod *os.File) error {
		if err := unmountSubpaths(ctx, pod, on.Name); err != nil {
			return err
		}
		if err := forgetReady(ctx, pod, on); err != nil {
			return err
		}
		err := inDir(pod, filepath.Dir(on.path()), func(plugin *os.File) (err error) {
			if on.Plugin == pluginname.NFS {
				err = v.unmountShare(ctx, plugin, on.Name)
			} else {
				err = unmount(plugin, on.Name)
			}
			if err == nil && on.Plugin == pluginname.Local {
				err = v.leaveDevice(uid, on)
			}
			if err != nil {
				return err
			}
			return removeVolume(ctx, plugin, on)
		})
		if err == nil && on.Plugin == pluginname.Local {
			if err = v.devices.release(ctx, uid, on.Name, pod); err == nil {
				err = v.passGroup(pod, uid, on)
			}
		}
		if err != nil {
			return err
		}
		// Its marks go last: List may know the volume by them alone.
		return inDir(pod, filepath.Dir(on.marksDir()), func(marks *os.File) error { return removeTree(ctx, marks, on.Name) })
	})
}

// removeVolume removes the directory of a volume on which nothing is mounted any more. If the volume outlives its pod,
// the directory must be empty: a file in it was written while the mount was gone, and may be the only copy.
func removeVolume(ctx context.Context, plugin *os.File, on OnDisk) error {
	switch on.Plugin {
	case pluginname.Local, pluginname.NFS, pluginname.ISCSI:
	default:
		return removeTree(ctx, plugin, on.Name)
	}
	err := unlink(plugin, on.Name)
	if errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("%s is not empty although its volume is gone: check what is in it and remove it",
			filepath.Join(plugin.Name(), on.Name))
	}
	return err
}

// unmountShare unmounts a share. The kernel first takes it from the tree, and then writes to the server what has not
// been written yet, which may not answer: the pod does not wait for that longer than with the kubelet.
func (v *FS) unmountShare(ctx context.Context, plugin *os.File, name string) error {
	dir, err := openDir(plugin, ".")
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		defer dir.Close()
		ended <- unmount(dir, name)
	}()
	timeout := time.NewTimer(v.serverTimeout)
	defer timeout.Stop()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
	}
	path := filepath.Join(plugin.Name(), name)
	if mounts.On(plugin, name) {
		return fmt.Errorf("unmount %s: not done after %s", path, v.serverTimeout)
	}
	v.log.Warn("server of a network share does not answer, the last writes of the pod may be lost", "path", path)
	return nil
}

// forgetReady removes the mark of a volume that has been set up. The kubelet also leaves one for the emptyDir inside
// the volumes of its other plugins.
func forgetReady(ctx context.Context, pod *os.File, on OnDisk) error {
	volume := on.Name
	if on.Plugin != pluginname.EmptyDir {
		volume = "wrapped_" + on.Name
	}
	marks := filepath.Dir(OnDisk{pluginname.EmptyDir, volume}.marksDir())
	return inDir(pod, marks, func(dir *os.File) error { return removeTree(ctx, dir, volume) })
}

// UnmountSubpaths unmounts the bind mounts of a volume's subPaths, or those of all volumes of the pod if volume is
// empty. Unmount does it for its own volume; other kinds of volumes, such as claims, need it before they are unmounted.
// volume is the name that Subpath got.
func (d *PodDirs) UnmountSubpaths(ctx context.Context, uid types.UID, volume string) error {
	return d.inPod(uid, func(pod *os.File) error { return unmountSubpaths(ctx, pod, volume) })
}

func unmountSubpaths(ctx context.Context, pod *os.File, volume string) error {
	err := inDir(pod, poddir.Subpaths, func(subpaths *os.File) (err error) {
		volumes := []string{volume}
		if volume == "" {
			if volumes, err = subpaths.Readdirnames(-1); err != nil {
				return err
			}
		}
		for _, name := range volumes {
			if err := unmountSubpathsOf(ctx, subpaths, name); err != nil {
				return fmt.Errorf("volume %q: %w", name, err)
			}
		}
		if err := rmdir(pod, poddir.Subpaths); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("unmount subPaths: %w", err)
	}
	return nil
}

// unmountSubpathsOf returns an error if something is not empty after the unmount: the agent did not put that there.
func unmountSubpathsOf(ctx context.Context, subpaths *os.File, volume string) error {
	if err := poddir.CheckName("volume", volume); err != nil {
		return err
	}
	err := eachDir(subpaths, volume, func(dir, container *os.File, name string) error {
		indices, err := container.Readdirnames(-1)
		if err != nil {
			return err
		}
		for _, index := range indices {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := unmount(container, index); err != nil {
				return err
			}
			if err := unlink(container, index); err != nil {
				return err
			}
		}
		return rmdir(dir, name)
	})
	if err != nil {
		return err
	}
	return rmdir(subpaths, volume)
}
