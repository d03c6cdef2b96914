package podfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// mountHostPath checks a path of the node, and creates it if the volume asks for that. It mounts nothing. Links are
// followed: the administrator chose the path.
func (v *FS) mountHostPath(ctx context.Context, s *corev1.HostPathVolumeSource) (Mounted, error) {
	if slices.Contains(strings.Split(s.Path, "/"), "..") {
		return Mounted{}, fmt.Errorf("invalid HostPath `%s`: must not contain '..'", s.Path)
	}
	return Mounted{HostPath: s.Path}, v.checkHostPath(ctx, s.Path, ptr.Deref(s.Type, corev1.HostPathUnset))
}

func (v *FS) checkHostPath(ctx context.Context, path string, wanted corev1.HostPathType) error {
	if wanted == corev1.HostPathUnset {
		return nil
	}
	kind, what := wanted, ""
	switch wanted {
	case corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory:
		kind, what = corev1.HostPathDirectory, "a directory"
	case corev1.HostPathFileOrCreate, corev1.HostPathFile:
		kind, what = corev1.HostPathFile, "a file"
	case corev1.HostPathSocket:
		what = "a socket file"
	case corev1.HostPathCharDev:
		what = "a character device"
	case corev1.HostPathBlockDev:
		what = "a block device"
	default:
		return fmt.Errorf("%s is an invalid volume type", wanted)
	}
	info, err := v.statNode(ctx, path)
	if errors.Is(err, fs.ErrNotExist) && kind != wanted {
		if err := create(path, kind); err != nil {
			return err
		}
		info, err = v.statNode(ctx, path) // another process may have been faster
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("path %q does not exist", path)
	}
	if err != nil {
		return fmt.Errorf("hostPath type check failed, %s is not %s, unable to determine its type: %w", path, what, err)
	}
	if is := kindOf(info.Mode()); is != kind {
		return fmt.Errorf("hostPath type check failed: %s is not %s, it's a %s", path, what, is)
	}
	return nil
}

// statNode returns what is at a path of the node. It can be given up: the path may be below a mount whose server does
// not answer, and no call to that ends before the server is back. Until then no other call is made: each has a thread.
func (v *FS) statNode(ctx context.Context, path string) (fs.FileInfo, error) {
	found := v.looking.DoChan(path, func() (any, error) { return v.stat(path) })
	select {
	case r := <-found:
		info, _ := r.Val.(fs.FileInfo)
		return info, r.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("stat %s: %w", path, ctx.Err())
	}
}

// kindOf returns the type of a file in the words of a hostPath volume.
func kindOf(m fs.FileMode) corev1.HostPathType {
	switch {
	case m.IsDir():
		return corev1.HostPathDirectory
	case m&fs.ModeSocket != 0:
		return corev1.HostPathSocket
	case m&fs.ModeCharDevice != 0:
		return corev1.HostPathCharDev
	case m&fs.ModeDevice != 0:
		return corev1.HostPathBlockDev
	case m.IsRegular():
		return corev1.HostPathFile
	}
	return "file of another type"
}

// create makes a directory or a file, unless there is one. It does not wait for a writer if there is a named pipe.
func create(path string, kind corev1.HostPathType) error {
	if kind == corev1.HostPathDirectory {
		return os.MkdirAll(path, 0o755)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
