package execute

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/boundedfile"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// maxEnvFiles bounds the environment files of a container together, in bytes.
const maxEnvFiles = 16 * spec.MaxEnvFile

// envFiles reads the files in volumes that the container's environment refers to. The root of the volume is the root
// for symbolic links, so these cannot lead outside. A file that does not exist is left out: spec knows whether it is
// optional.
//
// Their sum is bounded: a container keeps them until it is created, and one file may have many names.
func envFiles(t *Task, c *corev1.Container) (map[spec.EnvFile][]byte, error) {
	wanted := spec.EnvFiles(c)
	if len(wanted) == 0 {
		return nil, nil
	}
	out := make(map[spec.EnvFile][]byte, len(wanted))
	left := maxEnvFiles
	for _, w := range wanted {
		if _, ok := out[w]; ok {
			continue // for another variable
		}
		text, err := readBeneath(t.mounts[w.Volume].HostPath, w.Path)
		switch {
		case err == nil:
			if left -= len(text); left < 0 {
				return nil, badEnvFile("with %q of volume %q the environment files have more than %d bytes", w.Path, w.Volume,
					maxEnvFiles)
			}
			out[w] = text
		case errors.Is(err, os.ErrNotExist):
		case errors.Is(err, boundedfile.ErrTooLarge):
			return nil, badEnvFile("environment file %q of volume %q is larger than %d bytes", w.Path, w.Volume, spec.MaxEnvFile)
		default: // the error would show paths of the host
			return nil, badEnvFile("cannot read environment file %q of volume %q", w.Path, w.Volume)
		}
	}
	return out, nil
}

func badEnvFile(format string, args ...any) error {
	return &spec.Reason{Reason: podutil.ReasonCreateContainerConfig, Message: fmt.Sprintf(format, args...)}
}

// readBeneath reads the regular file at path beneath dir, which is the root for symbolic links, as in the kubelet.
// Another container may have put anything there.
func readBeneath(dir, path string) ([]byte, error) {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := beneath.OpenRegular(root, path, beneath.LinksInRoot)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return boundedfile.ReadAll(f, spec.MaxEnvFile)
}
