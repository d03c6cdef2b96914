package podfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/boundedfile"
)

// The layout of a volume whose files change all at once:
//
//	key             -> ..data/key       what containers open
//	dir             -> ..data/dir       one link for each first path element
//	..data          -> ..2026_01_02_15_04_05.123456789
//	..2026_01_02_15_04_05.123456789/    the files
//
// An update fills a new timestamped directory and renames a new link over "..data". Applications watch "..data".
const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"
	stampLayout = "..2006_01_02_15_04_05."
)

// atomicDir is an open volume directory with that layout.
type atomicDir struct {
	dir  *os.File // for the calls os.Root does not have
	root *os.Root // the same directory
	// check returns an error if the volume may not have what is about to be made.
	check func() error
}

func openAtomic(dir *os.File) (atomicDir, error) {
	root, err := os.OpenRoot(fdPath(dir))
	if err != nil {
		return atomicDir{}, fmt.Errorf("open volume directory: %w", err)
	}
	return atomicDir{dir: dir, root: root, check: func() error { return nil }}, nil
}

// write sets the content of the volume to want. own sets the owner of the files before they can be seen. It also
// repairs what an earlier crash left behind if the content is up to date.
func (a atomicDir) write(ctx context.Context, want payload, now time.Time, own func() error) error {
	if err := want.checkTree(); err != nil {
		return err
	}
	current := a.current()
	if current == "" || !a.holds(current, want) {
		// First remove what an update has left that was not finished: files in memory would become more with each attempt.
		if err := a.sweep(ctx, isLeft(current)); err != nil {
			return err
		}
		var err error
		if current, err = a.publish(ctx, want, now, own); err != nil {
			return err
		}
	}
	if err := a.link(want); err != nil {
		return err
	}
	return a.sweep(ctx, a.isStale(want, current))
}

// current returns the name of the directory that "..data" leads to, or "" if there is none that can be trusted.
func (a atomicDir) current() string {
	name, err := a.root.Readlink(dataLink)
	if err != nil || !isStamp(name) {
		return ""
	}
	if info, err := a.root.Lstat(name); err != nil || !info.IsDir() {
		return ""
	}
	return name
}

// isStamp reports whether a name is that of a timestamped directory of this package or of the kubelet.
func isStamp(name string) bool {
	rest, ok := strings.CutPrefix(name, "..")
	return ok && rest != "" && rest[0] >= '0' && rest[0] <= '9' && !strings.Contains(name, "/")
}

// holds reports whether the directory has exactly the wanted files. It returns false in doubt: then the directory is
// written again.
func (a atomicDir) holds(stamp string, want payload) bool {
	dir, err := openDir(a.dir, stamp)
	if err != nil {
		return false
	}
	defer dir.Close()
	found, err := countSame(dir, "", want)
	return err == nil && found == len(want)
}

var errDiffers = errors.New("content differs")

// countSame counts the files below dir. A file that is not as wanted is an error.
func countSame(dir *os.File, prefix string, want payload) (found int, err error) {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		n, err := countSameAt(dir, name, filepath.Join(prefix, name), want)
		if err != nil {
			return 0, err
		}
		found += n
	}
	return found, nil
}

func countSameAt(dir *os.File, name, path string, want payload) (int, error) {
	f, err := beneath.Open(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, beneath.NoLinks)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.IsDir() {
		return countSame(f, path, want)
	}
	wanted, ok := want[path]
	if !ok {
		return 0, errDiffers
	}
	got, err := boundedfile.ReadAll(f, int64(len(wanted.data)))
	if err != nil || !bytes.Equal(got, wanted.data) {
		return 0, errDiffers
	}
	return 1, nil
}

// publish writes the files to a new directory and points "..data" to it.
func (a atomicDir) publish(
	ctx context.Context, want payload, now time.Time, own func() error,
) (stamp string, err error) {
	if err := a.check(); err != nil {
		return "", err
	}
	stamp = now.UTC().Format(stampLayout) + fmt.Sprintf("%09d", rand.Uint32N(1e9))
	dir, err := makeDir(a.dir, stamp, contentDir)
	if err != nil {
		return "", err
	}
	dir.Close()
	err = a.writeFiles(ctx, stamp, want)
	if err == nil {
		err = own()
	}
	if err == nil {
		err = a.switchTo(stamp)
	}
	if err != nil {
		// Leave no secret behind. If this fails too, the next write removes it.
		_ = removeTree(context.Background(), a.dir, stamp)
		return "", err
	}
	return stamp, nil
}

func (a atomicDir) writeFiles(ctx context.Context, stamp string, want payload) error {
	for path, f := range want {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := a.writeFile(stamp, path, f); err != nil {
			return err
		}
	}
	return nil
}

// switchTo points "..data" to the directory.
func (a atomicDir) switchTo(stamp string) error {
	if err := removeTree(context.Background(), a.dir, newDataLink); err != nil {
		return err
	}
	if err := a.root.Symlink(stamp, newDataLink); err != nil {
		return err
	}
	if err := a.clearDataLink(); err != nil {
		return err
	}
	return a.root.Rename(newDataLink, dataLink)
}

// clearDataLink removes a "..data" that is a directory, over which no link can be renamed.
func (a atomicDir) clearDataLink() error {
	info, err := a.root.Lstat(dataLink)
	if err != nil || !info.IsDir() {
		return nil
	}
	return removeTree(context.Background(), a.dir, dataLink)
}

func (a atomicDir) writeFile(stamp, path string, f file) error {
	dir, err := makeDir(a.dir, filepath.Join(stamp, filepath.Dir(path)), contentDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	out, err := openFile(dir, filepath.Base(path), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	_, err = out.Write(f.data)
	if err == nil && f.uid != nil {
		err = out.Chown(int(*f.uid), -1)
	}
	if err == nil {
		err = out.Chmod(fs.FileMode(f.mode))
	}
	writeNote(out, f.note)
	return errors.Join(err, out.Close())
}

// link makes the links that containers see. It leaves a directory in the place of a link: another volume is mounted
// there.
func (a atomicDir) link(want payload) error {
	done := map[string]bool{}
	for path, f := range want {
		name, _, _ := strings.Cut(path, "/")
		if done[name] {
			continue
		}
		done[name] = true
		if err := a.linkOne(name, f.uid); err != nil {
			return err
		}
	}
	return nil
}

func (a atomicDir) linkOne(name string, uid *int64) error {
	info, err := a.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.IsDir():
		return nil
	default:
		if target, err := a.root.Readlink(name); err == nil && target == filepath.Join(dataLink, name) {
			return nil
		}
		if err := a.root.Remove(name); err != nil {
			return err
		}
	}
	if err := a.root.Symlink(filepath.Join(dataLink, name), name); err != nil {
		return err
	}
	if uid == nil {
		return nil
	}
	return a.root.Lchown(name, int(*uid), -1)
}

// isLeft returns a predicate that reports whether an entry is what updates have left behind.
func isLeft(current string) func(fs.DirEntry) bool {
	return func(e fs.DirEntry) bool {
		return e.Name() == newDataLink || isStamp(e.Name()) && e.Name() != current
	}
}

// isStale returns a predicate that reports whether an entry is that, or a link to a file that no longer exists.
func (a atomicDir) isStale(want payload, current string) func(fs.DirEntry) bool {
	left, keep := isLeft(current), map[string]bool{}
	for path := range want {
		name, _, _ := strings.Cut(path, "/")
		keep[name] = true
	}
	return func(e fs.DirEntry) bool {
		if left(e) || keep[e.Name()] || e.Type() != fs.ModeSymlink {
			return left(e)
		}
		target, _ := a.root.Readlink(e.Name())
		return target == filepath.Join(dataLink, e.Name())
	}
}

// sweep removes the entries that are stale.
func (a atomicDir) sweep(ctx context.Context, stale func(fs.DirEntry) bool) error {
	entries, err := fs.ReadDir(a.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !stale(e) {
			continue
		}
		if err := removeTree(ctx, a.dir, e.Name()); err != nil {
			return err
		}
	}
	return nil
}
