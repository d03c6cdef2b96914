package agent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
)

// envFiles reads the files in volumes that the container's environment refers to. Each is opened beneath the root of its
// volume, so that a link in it leads nowhere else; one that does not exist is left out.
func (t *task) envFiles(c *corev1.Container) (map[spec.EnvFile][]byte, error) {
	wanted := spec.EnvFiles(c)
	if len(wanted) == 0 {
		return nil, nil
	}
	out := make(map[spec.EnvFile][]byte, len(wanted))
	for _, w := range wanted {
		text, err := readBeneath(t.mounts[w.Volume].HostPath, w.Path)
		switch {
		case err == nil:
			out[w] = text
		case !errors.Is(err, os.ErrNotExist):
			return nil, &spec.Reason{Reason: spec.ReasonCreateContainerConfig,
				Message: fmt.Sprintf("cannot read environment file %q of volume %q", w.Path, w.Volume)}
		}
	}
	return out, nil
}

// readBeneath reads a plain file. Another container may have put a pipe there, which must not hold the agent up.
func readBeneath(dir, path string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	return io.ReadAll(io.LimitReader(f, spec.MaxEnvFile))
}
