package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/noatime"
	"github.com/nodelet/nodelet/kube/poddir"
)

// LinksDir is where log collectors expect links to the logs of containers.
const LinksDir = "/var/log/containers"

// Tree makes and removes the log directories of pods, and the links to their logs for log collectors. Pods may be able
// to write there, so nothing outside of the two directories is touched, and neither of them is replaced by a link while
// the agent runs. Create it with NewTree.
type Tree struct {
	// pods and links are the paths as configured, realPods and realLinks those without symbolic links.
	pods, links         string
	realPods, realLinks string
}

// NewTree returns the log directories of pods below pods, normally /var/log/pods, and the links in links, normally
// /var/log/containers. It makes both; either may be a symbolic link of the administrator.
func NewTree(pods, links string) (*Tree, error) {
	t := &Tree{pods: filepath.Clean(pods), links: filepath.Clean(links)}
	for path, resolved := range map[string]*string{t.pods: &t.realPods, t.links: &t.realLinks} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("make log directory: %w", err)
		}
		var err error
		if *resolved, err = filepath.EvalSymlinks(path); err != nil {
			return nil, fmt.Errorf("find log directory: %w", err)
		}
	}
	return t, nil
}

// openRoot opens one of the two directories. It makes one that is missing again: an administrator may have removed it,
// or mounted another file system above it.
func openRoot(path string) (*os.Root, error) {
	r, err := openDir(path)
	if !errors.Is(err, fs.ErrNotExist) || path == "/" {
		return r, err
	}
	above, err := openRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer above.Close()
	if err := above.Mkdir(filepath.Base(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return openDir(path)
}

func openDir(path string) (*os.Root, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s was replaced by a symbolic link, remove the link", path)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// Make makes a directory, and those above it, below the log directories of pods.
func (t *Tree) Make(dir string) error {
	name, err := filepath.Rel(t.pods, dir)
	if err != nil {
		return err
	}
	r, err := openRoot(t.realPods)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.MkdirAll(name, 0o755)
}

// Link makes a link by which log collectors find the log of a container. It may be there already.
func (t *Tree) Link(log, name string) error {
	r, err := openRoot(t.realLinks)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Symlink(log, name); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// RemoveLog removes the log of a container, its rotated logs and the link to it.
func (t *Tree) RemoveLog(log, link string) error {
	name, err := filepath.Rel(t.pods, log)
	if err != nil {
		return err
	}
	pods, err := openRoot(t.realPods)
	if err != nil {
		return err
	}
	defer pods.Close()
	rotated, _ := fs.Glob(pods.FS(), name+".*") // the pattern is a good one
	var errs []error
	for _, n := range append(rotated, name) {
		errs = append(errs, ignoreMissing(pods.Remove(n)))
	}
	links, err := openRoot(t.realLinks)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer links.Close()
	return errors.Join(append(errs, ignoreMissing(links.Remove(link)))...)
}

// RemovePod removes the log directory of a pod, which is called <namespace>_<name>_<uid>, and the links to its logs.
func (t *Tree) RemovePod(pod *metav1.ObjectMeta) error {
	pods, err := openRoot(t.realPods)
	if err != nil {
		return err
	}
	defer pods.Close()
	found, err := dirsOf(pods, pod)
	if err != nil {
		return err
	}
	if len(found) == 0 && pod.Name != "" { // others may have removed the directory, and left the links
		return t.removeLinks(filepath.Join(t.pods, poddir.Logs(pod.Namespace, pod.Name, pod.UID)))
	}
	for _, name := range found {
		if err := t.removeLinks(filepath.Join(t.pods, name)); err != nil {
			return err
		}
		if err := pods.RemoveAll(name); err != nil {
			return fmt.Errorf("remove log directory: %w", err)
		}
	}
	return nil
}

// Pods returns the pods that have a log directory.
func (t *Tree) Pods() (uids []types.UID, err error) {
	pods, err := openRoot(t.realPods)
	if err != nil {
		return nil, err
	}
	defer pods.Close()
	all, err := names(pods)
	for _, name := range all {
		if uid := owner(name); uid != "" {
			uids = append(uids, uid)
		}
	}
	return uids, err
}

// Has reports whether a pod has a log directory.
func (t *Tree) Has(pod *metav1.ObjectMeta) (bool, error) {
	pods, err := openRoot(t.realPods)
	if err != nil {
		return false, err
	}
	defer pods.Close()
	found, err := dirsOf(pods, pod)
	return len(found) > 0, err
}

// Attempts returns how many attempts the logs of a container count, by the highest number in their names: that of a log
// is <attempt>.log, and those of rotated logs begin with that. Without logs it is 0.
func (t *Tree) Attempts(pod *metav1.ObjectMeta, container string) (count uint32, err error) {
	pods, err := openRoot(t.realPods)
	if err != nil {
		return 0, err
	}
	defer pods.Close()
	dir, err := pods.OpenRoot(filepath.Join(poddir.Logs(pod.Namespace, pod.Name, pod.UID), container))
	if err != nil {
		return 0, ignoreMissing(err)
	}
	defer dir.Close()
	all, err := names(dir)
	for _, name := range all {
		number, _, _ := strings.Cut(name, ".log")
		if n, err := strconv.ParseUint(number, 10, maxAttemptBits); err == nil && number != name {
			count = max(count, uint32(n)+1)
		}
	}
	return count, err
}

// maxAttemptBits bounds the numbers that count: pods may be able to write any name, and restart counts are an int32.
const maxAttemptBits = 30

// dirsOf returns the names of the log directories of a pod: one or none. Of an orphaned pod perhaps nothing but the UID
// is known. It is the only one for which all directories are looked at.
func dirsOf(pods *os.Root, pod *metav1.ObjectMeta) ([]string, error) {
	if pod.Name == "" {
		all, err := names(pods)
		return slices.DeleteFunc(all, func(name string) bool { return owner(name) != pod.UID }), err
	}
	name := poddir.Logs(pod.Namespace, pod.Name, pod.UID)
	if _, err := pods.Lstat(name); errors.Is(err, unix.ENAMETOOLONG) {
		return nil, nil // so none could be made
	} else if err != nil {
		return nil, ignoreMissing(err)
	}
	return []string{name}, nil
}

// owner returns the UID of the pod that a log directory belongs to; empty if it is something else.
func owner(name string) types.UID {
	if parts := strings.SplitN(name, "_", 3); len(parts) == 3 {
		return types.UID(parts[2])
	}
	return ""
}

// names returns the names of what a directory has.
func names(dir *os.Root) ([]string, error) {
	all, err := noatime.Names(func(flags int) (*os.File, error) { return dir.OpenFile(".", flags, 0) })
	if err != nil {
		return nil, fmt.Errorf("list log directory: %w", err)
	}
	return all, nil
}

// removeLinks removes the links to logs in a pod's directory. They are called <name>_<namespace>_<container>-<id>.log.
func (t *Tree) removeLinks(dir string) error {
	r, err := openRoot(t.realLinks)
	if err != nil {
		return err
	}
	defer r.Close()
	all, err := names(r)
	if err != nil {
		return err
	}
	namespace, rest, _ := strings.Cut(filepath.Base(dir), "_")
	name, _, _ := strings.Cut(rest, "_")
	for _, link := range all {
		if !strings.HasPrefix(link, name+"_"+namespace+"_") {
			continue
		}
		if target, err := r.Readlink(link); err == nil && filepath.Dir(filepath.Dir(target)) == dir {
			_ = r.Remove(link) // log collectors skip a link without its log
		}
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
