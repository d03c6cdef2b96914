package podfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// mountHostPath checks, and makes if asked to, a path of the node. There is nothing to mount and never anything
// to remove. Links are followed: the path is the administrator's own.
func mountHostPath(s *corev1.HostPathVolumeSource) (Mounted, error) {
	if slices.Contains(strings.Split(s.Path, "/"), "..") {
		return Mounted{}, fmt.Errorf("invalid HostPath `%s`: must not contain '..'", s.Path)
	}
	wanted := corev1.HostPathUnset
	if s.Type != nil {
		wanted = *s.Type
	}
	changed, err := checkHostPath(s.Path, wanted)
	return Mounted{HostPath: s.Path, Changed: changed}, err
}

func checkHostPath(path string, wanted corev1.HostPathType) (made bool, err error) {
	if wanted == corev1.HostPathUnset {
		return false, nil
	}
	var is func(fs.FileMode) bool
	var what string
	switch wanted {
	case corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory:
		what, is = "a directory", fs.FileMode.IsDir
	case corev1.HostPathFileOrCreate, corev1.HostPathFile:
		what, is = "a file", fs.FileMode.IsRegular
	case corev1.HostPathSocket:
		what, is = "a socket file", func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 }
	case corev1.HostPathCharDev:
		what, is = "a character device", func(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 }
	case corev1.HostPathBlockDev:
		what, is = "a block device", func(m fs.FileMode) bool { return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0 }
	default:
		return false, fmt.Errorf("%s is an invalid volume type", wanted)
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		switch wanted {
		case corev1.HostPathDirectoryOrCreate:
			return true, os.MkdirAll(path, 0o755)
		case corev1.HostPathFileOrCreate:
			return true, makeFile(path)
		}
	}
	if err != nil || !is(info.Mode()) {
		return false, fmt.Errorf("hostPath type check failed: %s is not %s", path, what)
	}
	return false, nil
}

func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
