package podfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/kube/poddir"
)

// A mark is an empty file in pods/<uid>/plugins/<plugin>/<volume> that says how far the setup of a volume is, or that
// it is reserved for the pod. It survives the agent, but not a power failure.

// marksDir returns the directory of a volume's marks, relative to the pod's.
func (o OnDisk) marksDir() string { return poddir.Of(poddir.Plugins, o.Plugin, o.Name) }

func hasMark(pod *os.File, on OnDisk, mark string) (has bool, err error) {
	err = inDir(pod, on.marksDir(), func(dir *os.File) error {
		st, err := statChild(dir, mark)
		has = err == nil && fileType(st) == unix.S_IFREG
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return has, err
}

func setMark(pod *os.File, on OnDisk, mark string) error {
	dir, err := makeDir(pod, on.marksDir(), privateDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := openFile(dir, mark, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return err
	}
	return f.Close()
}

func clearMark(pod *os.File, on OnDisk, mark string) error {
	dir, err := openDir(pod, on.marksDir())
	if err != nil {
		return err
	}
	defer dir.Close()
	return unlink(dir, mark)
}
