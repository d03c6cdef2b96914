package podfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// readyFile in pods/<uid>/plugins/kubernetes.io~empty-dir/<volume> says that an emptyDir has been set up: from
// then on its modes and owners are the containers' business.
const readyFile = "ready"

func readyDir(volume string) string {
	return filepath.Join(pluginsDir, escapePlugin(pluginEmptyDir), volume)
}

func (v *FS) mountEmptyDir(ctx context.Context, r Request, s *corev1.EmptyDirVolumeSource) (Mounted, error) {
	on := OnDisk{Plugin: pluginEmptyDir, Name: r.Volume.Name}
	mem, err := v.mediumFS(r, s)
	if err != nil {
		return Mounted{}, err
	}
	pod, err := v.makePod(r.Pod.UID)
	if err != nil {
		return Mounted{}, err
	}
	defer pod.Close()
	mounted := Mounted{HostPath: v.hostPath(r.Pod.UID, on), SELinuxRelabel: true}

	done := isReady(pod, on)
	dir, created, err := makeEmpty(pod, on.path(), mem)
	if err != nil {
		return Mounted{}, err
	}
	defer dir.Close()
	if done && !created {
		return mounted, nil
	}
	mounted.Changed = true
	if mem == nil {
		if err := setMode(dir, 0o777); err != nil {
			return Mounted{}, err
		}
	}
	if err := ownerOf(r.Pod, false).apply(ctx, dir); err != nil {
		return Mounted{}, err
	}
	return mounted, setReady(pod, on.Name)
}

// makeEmpty makes the volume's directory, with a file system on it if it has one of its own. created says that
// what is there is new.
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

func isReady(pod *os.File, on OnDisk) bool {
	dir, err := openDir(pod, readyDir(on.Name))
	if err != nil {
		return false
	}
	defer dir.Close()
	st, err := statChild(dir, readyFile)
	return err == nil && fileType(st) == unix.S_IFREG
}

func setReady(pod *os.File, volume string) error {
	dir, err := makeDir(pod, readyDir(volume), privateDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := openFile(dir, readyFile, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return err
	}
	return f.Close()
}
