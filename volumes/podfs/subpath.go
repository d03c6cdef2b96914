package podfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
)

// SubPath names a part of a volume that a container mounts instead of the whole volume.
type SubPath struct {
	PodUID    types.UID
	Container string
	Volume    string // for the path on disk: the name of the volume, or of the PersistentVolume behind a claim
	Mount     string // for messages: the volumeMount's name
	Index     int    // of the volumeMount in the container
	HostPath  string // of the volume, from Mounted
	Path      string // the volumeMount's subPath; variables of subPathExpr expanded
}

// Subpath makes a part of a volume available at a path that no pod can change any more, and returns that path.
// Missing directories are made with the mode of the volume's root. Links are followed as long as they stay inside
// the volume. Another part that was mounted there for an earlier start of the container is exchanged.
//
// Its errors do not say what is found where on the node, as the pod's author reads them; the log does.
func (v *FS) Subpath(ctx context.Context, s SubPath) (hostPath string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if filepath.IsAbs(s.Path) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", s.Path)
	}
	if slices.Contains(strings.Split(s.Path, "/"), "..") {
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", s.Path)
	}
	if err := errors.Join(poddir.CheckName("container", s.Container), poddir.CheckName("volume", s.Volume)); err != nil {
		return "", err
	}
	if err := v.answers(ctx, s.HostPath); err != nil {
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: the volume does not answer: %w",
			s.Mount, s.Container, err)
	}
	if err := v.subpath(s); err != nil {
		v.log.Error("cannot mount subPath", "pod", s.PodUID, "container", s.Container, "volume", s.Volume, "err", err)
		doing := "prepare subPath"
		if errors.Is(err, errMakeSubpath) {
			doing = "create subPath directory"
		}
		return "", fmt.Errorf("failed to %s for volumeMount %q of container %q", doing, s.Mount, s.Container)
	}
	return filepath.Join(v.podsDir, string(s.PodUID), s.dir(), s.index()), nil
}

// answers waits until the file system of a volume answers, whatever it says, or until ctx ends. Meanwhile the volume
// can be unmounted.
func (v *FS) answers(ctx context.Context, hostPath string) error {
	answer := v.looking.DoChan("answer of "+hostPath, func() (any, error) {
		if own, err := mounts.Remote(hostPath); err == nil {
			defer own.Close()
			return nil, mounts.Ask(own)
		}
		var st unix.Statx_t
		return nil, unix.Statx(unix.AT_FDCWD, hostPath, unix.AT_STATX_FORCE_SYNC, unix.STATX_MODE, &st)
	})
	select {
	case <-answer:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (v *FS) subpath(s SubPath) error {
	part, err := v.openSubpath(s)
	if err != nil {
		return err
	}
	defer part.Close()
	return v.bindSubpath(s, part)
}

var errMakeSubpath = errors.New("make missing directories")

// dir is where the container's parts of the volume are mounted, relative to the pod's directory.
func (s SubPath) dir() string { return filepath.Join(poddir.Subpaths, s.Volume, s.Container) }

func (s SubPath) index() string { return strconv.Itoa(s.Index) }

// openSubpath opens the part, and makes it a directory if it is not there. All that follows goes through the open
// file: any process that can write to the volume may exchange any name in it at any moment.
func (v *FS) openSubpath(s SubPath) (*os.File, error) {
	root, err := v.openVolume(s.HostPath)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	path := filepath.Clean(s.Path)
	part, err := openPart(root, path)
	if !errors.Is(err, unix.ENOENT) {
		return part, err
	}
	if s.HostPath == v.hostPath(s.PodUID, OnDisk{pluginname.EmptyDir, s.Volume}) {
		if err := v.made.grow(root, s, path); err != nil {
			return nil, fmt.Errorf("%w: %w", errMakeSubpath, err)
		}
	}
	if err := makeMissing(root, path); err != nil {
		return nil, fmt.Errorf("%w: %w", errMakeSubpath, err)
	}
	return openPart(root, path)
}

// maxSubpathDirs bounds the directories that the agent makes for the subPaths of a pod in emptyDirs that are in memory.
// The kernel counts each as a kilobyte of the agent.
const maxSubpathDirs = 8 << 10

// subpathDirs has how many such directories were made for pods.
type subpathDirs struct{ sums }

// grow notes the directories of a part. It is an error if the pod would have too many then.
func (d *subpathDirs) grow(root *os.File, s SubPath, path string) error {
	var sfs unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &sfs); err != nil {
		return pathError("statfs", root, "", err)
	}
	if sfs.Type != unix.TMPFS_MAGIC && sfs.Type != unix.HUGETLBFS_MAGIC {
		return nil
	}
	levels := int64(strings.Count(path, "/") + 1)
	if sum := d.set(s.PodUID, filepath.Join(s.dir(), s.index()), levels, maxSubpathDirs); sum > maxSubpathDirs {
		return fmt.Errorf("the subPaths of the pod would have %d directories in memory, and may have %d", sum, maxSubpathDirs)
	}
	return nil
}

// openVolume opens the root of a volume. Below the pods directory no link may be on the way; a hostPath is the
// administrator's own.
func (v *FS) openVolume(hostPath string) (*os.File, error) {
	root, err := v.openBelow(hostPath)
	if errors.Is(err, errOutside) {
		return os.OpenFile(hostPath, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	return root, err
}

// openPart opens a file of any type without touching it. Asking for a directory first lets an automount happen.
func openPart(root *os.File, path string) (*os.File, error) {
	part, err := openInside(root, path, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) {
		return openInside(root, path, unix.O_PATH)
	}
	return part, err
}

// maxLinks is how many absolute links a path may have, as the kernel's own limit.
const maxLinks = 40

// openInside opens a path in a volume. For the kernel an absolute link leads out of the volume. If it names a path of
// the volume on the node, as after a move of its content, it is followed all the same.
func openInside(root *os.File, path string, flags int) (*os.File, error) {
	for range maxLinks {
		f, err := beneath.Open(root, path, flags, beneath.LinksInside)
		if !errors.Is(err, unix.EXDEV) {
			return f, err
		}
		next, inside := withoutLink(root, path)
		if !inside {
			return nil, err
		}
		path = next
	}
	return nil, pathError("open", root, path, unix.ELOOP)
}

// withoutLink puts the target of the first link of a path in its place. It looks at nothing outside the volume: inside
// reports whether the target is in it as far as its text says.
func withoutLink(root *os.File, path string) (next string, inside bool) {
	elements := strings.Split(path, "/")
	for n := range elements {
		target, isLink := readLink(root, strings.Join(elements[:n+1], "/"))
		if !isLink {
			continue
		}
		before := elements[:n]
		if filepath.IsAbs(target) {
			if target, inside = pathIn(root, target); !inside {
				return "", false
			}
			before = nil
		}
		return strings.Join(slices.Concat(before, []string{target}, elements[n+1:]), "/"), true
	}
	return "", false
}

func readLink(root *os.File, path string) (target string, isLink bool) {
	f, err := beneath.Open(root, path, unix.O_PATH|unix.O_NOFOLLOW, beneath.LinksInside)
	if err != nil {
		return "", false
	}
	defer f.Close()
	text := make([]byte, maxPath)
	n, err := unix.Readlinkat(int(f.Fd()), "", text)
	if err != nil {
		return "", false
	}
	return string(text[:n]), true
}

// pathIn returns an absolute path of the node relative to the volume that it is in.
func pathIn(root *os.File, path string) (rel string, inside bool) {
	own, _ := os.Readlink(fdPath(root)) // the volume's own path may have links in it
	for _, base := range []string{root.Name(), own} {
		if rel, err := filepath.Rel(base, path); err == nil && filepath.IsLocal(rel) {
			return rel, true
		}
	}
	return "", false
}

// makeMissing makes the missing directories of path. If another process creates one meanwhile its mode is left alone,
// and a link is refused.
func makeMissing(root *os.File, path string) error {
	st, err := stat(root)
	if err != nil {
		return err
	}
	elements := strings.Split(path, "/")
	parent, made, err := openExisting(root, elements)
	if err != nil {
		return err
	}
	for _, name := range elements[made:] {
		sub, err := makeOneDir(parent, name, uint32(st.Mode)&0o7777)
		parent.Close()
		if err != nil {
			return err
		}
		parent = sub
	}
	return parent.Close()
}

// openExisting opens the longest existing part of a path, and says how many of its elements that is.
func openExisting(root *os.File, elements []string) (*os.File, int, error) {
	for n := len(elements) - 1; n > 0; n-- {
		f, err := openInside(root, filepath.Join(elements[:n]...), unix.O_PATH|unix.O_DIRECTORY)
		if !errors.Is(err, unix.ENOENT) {
			return f, n, err
		}
	}
	f, err := beneath.Open(root, ".", unix.O_PATH|unix.O_DIRECTORY, beneath.LinksInside)
	return f, 0, err
}

// bindSubpath mounts the open part on its place below the pod's directory, unless it is there already.
func (v *FS) bindSubpath(s SubPath, part *os.File) error {
	want, err := stat(part)
	if err != nil {
		return err
	}
	pod, err := v.makePod(s.PodUID)
	if err != nil {
		return err
	}
	defer pod.Close()
	dir, err := makeDir(pod, s.dir(), privateDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if got, err := statChild(dir, s.index()); err == nil && mounts.IsRoot(&got) && sameFile(got, want) {
		return nil
	}
	if err := detach(dir, s.index()); err != nil {
		return err
	}
	target, err := makeTarget(dir, s.index(), fileType(want) == unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := unix.Mount(fdPath(part), fdPath(target), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount %s on %s: %w", part.Name(), target.Name(), err)
	}
	return nil
}

// makeTarget makes and opens what to mount on: a directory for a directory, an empty file for anything else.
func makeTarget(dir *os.File, name string, isDir bool) (*os.File, error) {
	if err := unlink(dir, name); err != nil { // of the wrong type, perhaps
		return nil, err
	}
	if isDir {
		if err := unix.Mkdirat(int(dir.Fd()), name, 0o750); err != nil {
			return nil, pathError("mkdir", dir, name, err)
		}
	} else {
		f, err := openFile(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
		if err != nil {
			return nil, err
		}
		f.Close()
	}
	return beneath.Open(dir, name, unix.O_PATH|unix.O_NOFOLLOW, beneath.SameMount)
}
