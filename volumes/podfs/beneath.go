package podfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/kube/poddir"
)

// openDir opens a directory of the tree that only this agent writes.
func openDir(dir *os.File, path string) (*os.File, error) {
	return openDirFor(unix.O_RDONLY, dir, path)
}

// openDirFor is openDir with a mode of access: O_RDONLY or, for a directory that root may not read, O_PATH.
func openDirFor(access int, dir *os.File, path string) (*os.File, error) {
	f, err := beneath.Open(dir, path, access|unix.O_DIRECTORY, beneath.NoLinks)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: a symbolic link does not belong there, remove it", err)
	}
	return f, err
}

// Modes of directories that this package makes.
const (
	privateDir = 0o750 // of the tree down to the volumes
	contentDir = 0o755 // in a volume
)

// makeDir makes the missing directories of path below dir, with this mode whatever the umask is, and opens the last
// one.
func makeDir(dir *os.File, path string, mode uint32) (*os.File, error) {
	f, err := openDir(dir, path)
	if !errors.Is(err, unix.ENOENT) {
		return f, err
	}
	for name := range strings.SplitSeq(path, "/") {
		sub, err := makeOneDir(dir, name, mode)
		if f != nil {
			f.Close()
		}
		if err != nil {
			return nil, err
		}
		dir, f = sub, sub
	}
	return f, nil
}

func makeOneDir(dir *os.File, name string, mode uint32) (*os.File, error) {
	err := unix.Mkdirat(int(dir.Fd()), name, mode&0o777)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, pathError("mkdir", dir, name, err)
	}
	made := err == nil
	f, err := openDir(dir, name)
	if err != nil || !made {
		return f, err
	}
	// The umask may have removed bits, and mkdir sets no set-id bits.
	if err := unix.Fchmod(int(f.Fd()), mode); err != nil {
		f.Close()
		return nil, pathError("chmod", dir, name, err)
	}
	return f, nil
}

// fdPath returns a path to an open file that stays valid when the file is renamed. It is for system calls that take no
// descriptor.
func fdPath(f *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
}

// stat returns the attributes of an open file.
func stat(f *os.File) (unix.Statx_t, error) {
	return statAt(f, "", unix.AT_EMPTY_PATH)
}

// statChild returns the attributes of an entry of a directory. It follows no link; of a mount point it returns those of
// the topmost mount.
func statChild(dir *os.File, name string) (unix.Statx_t, error) {
	return statAt(dir, name, 0)
}

func statAt(dir *os.File, name string, flags int) (unix.Statx_t, error) {
	var st unix.Statx_t
	flags |= unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if err := unix.Statx(int(dir.Fd()), name, flags, unix.STATX_BASIC_STATS, &st); err != nil {
		return st, pathError("stat", dir, name, err)
	}
	return st, nil
}

func fileType(st unix.Statx_t) uint32 { return uint32(st.Mode) & unix.S_IFMT }

func sameFile(a, b unix.Statx_t) bool {
	return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor
}

func pathError(op string, dir *os.File, path string, err error) error {
	return &os.PathError{Op: op, Path: filepath.Join(dir.Name(), path), Err: err}
}

// checkKernel returns an error on a kernel that does not report mount points.
func (d *PodDirs) checkKernel() error {
	pods, err := os.Open(d.podsDir)
	if err != nil {
		return fmt.Errorf("open pods directory: %w", err)
	}
	defer pods.Close()
	st, err := stat(pods)
	if err != nil {
		return fmt.Errorf("look at pods directory: %w", err)
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return errors.New("this kernel does not report mount points in statx: Linux 5.8 or newer is needed")
	}
	self, err := openDir(pods, ".")
	if err != nil {
		return fmt.Errorf("openat2 does not work, Linux 5.8 or newer without a seccomp filter on it is needed: %w", err)
	}
	return self.Close()
}

// openPod opens the directory of a pod.
func (d *PodDirs) openPod(uid types.UID) (*os.File, error) {
	return d.withPod(uid, openDir)
}

// makePod opens the directory of a pod, and makes it if it is missing.
func (d *PodDirs) makePod(uid types.UID) (*os.File, error) {
	return d.withPod(uid, func(pods *os.File, name string) (*os.File, error) { return makeDir(pods, name, privateDir) })
}

func (d *PodDirs) withPod(uid types.UID, open func(pods *os.File, name string) (*os.File, error)) (*os.File, error) {
	if err := poddir.CheckName("pod UID", string(uid)); err != nil {
		return nil, err
	}
	pods, err := os.Open(d.podsDir)
	if err != nil {
		return nil, err
	}
	defer pods.Close()
	return open(pods, string(uid))
}

// inPod passes the directory of a pod to do. Without the directory it does nothing.
func (d *PodDirs) inPod(uid types.UID, do func(pod *os.File) error) error {
	pod, err := d.openPod(uid)
	return within(pod, err, do)
}

// inDir passes a directory of the tree to do. Without the directory it does nothing.
func inDir(parent *os.File, path string, do func(dir *os.File) error) error {
	dir, err := openDir(parent, path)
	return within(dir, err, do)
}

func within(dir *os.File, err error, do func(*os.File) error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir)
}

var errOutside = errors.New("is not below the directory of the pods")

// openBelow opens a directory of a pod by its path on the host, as O_PATH: root may not be allowed to read it. An error
// has errOutside in its chain if it is not below the directory of the pods.
func (d *PodDirs) openBelow(hostPath string) (*os.File, error) {
	rel, err := filepath.Rel(d.podsDir, hostPath)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, fmt.Errorf("volume %s %w %s", hostPath, errOutside, d.podsDir)
	}
	pods, err := os.Open(d.podsDir)
	if err != nil {
		return nil, err
	}
	defer pods.Close()
	return openDirFor(unix.O_PATH, pods, rel)
}
