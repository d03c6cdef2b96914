package podfs

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
)

// readyMark is the mark of an emptyDir that has been set up: from then on containers may change its modes and owners.
// The kubelet writes the same mark.
const readyMark = "ready"

func (v *FS) mountEmptyDir(ctx context.Context, r Request, s *corev1.EmptyDirVolumeSource) (Mounted, error) {
	on := OnDisk{Plugin: pluginname.EmptyDir, Name: r.Volume.Name}
	mem, err := v.mediumFS(r, s)
	if err != nil {
		return Mounted{}, err
	}
	pod, err := v.makePod(r.Pod.UID)
	if err != nil {
		return Mounted{}, err
	}
	defer pod.Close()
	mounted := Mounted{HostPath: v.hostPath(r.Pod.UID, on), MountPoint: mem != nil, SELinuxRelabel: true}
	unlock, err := v.mounting.Lock(ctx, mounted.HostPath)
	if err != nil {
		return Mounted{}, err
	}
	defer unlock()
	done, err := hasMark(pod, on, readyMark)
	if err != nil {
		return Mounted{}, err
	}
	if done && mem != nil && !mounts.At(mounted.HostPath) { // the mark is from before a reboot
		done = false
		if err := clearMark(pod, on, readyMark); err != nil {
			return Mounted{}, err
		}
	}
	dir, created, err := makeEmpty(pod, on.path(), mem)
	if err != nil {
		return Mounted{}, err
	}
	defer dir.Close()
	if done && !created {
		return mounted, nil
	}
	switch {
	case s.Mode != nil:
		err = replaceMode(dir, uint32(*s.Mode)&0o1777)
	case mem == nil:
		err = permitAll(dir)
	}
	if err != nil {
		return Mounted{}, err
	}
	if err := v.ownerOf(r.Pod, false).apply(ctx, dir); err != nil {
		return Mounted{}, err
	}
	return mounted, setMark(pod, on, readyMark)
}

// makeEmpty makes the volume's directory, and mounts its file system if it has one. created reports whether the volume
// is new.
func makeEmpty(pod *os.File, path string, mem *memoryFS) (dir *os.File, created bool, err error) {
	if mem != nil {
		return makeMounted(pod, path, *mem)
	}
	dir, err = openDir(pod, path)
	if errors.Is(err, unix.ENOENT) {
		dir, err = makeDir(pod, path, privateDir)
		return dir, true, err
	}
	return dir, false, err
}
