package pods

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/boundedfile"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods/manifest"
)

// racy is the age up to which a file may change again without a new time stamp, on file systems with coarse ones.
const racy = 2 * time.Second

// extensions are those of manifest files. Unlike in the kubelet, where every file is a manifest, backup files
// (web.yaml.bak, web.yaml~) do not become pods; a problem says that they are ignored.
var extensions = []string{"", ".yaml", ".yml", ".json", ".manifest"}

// stamp identifies a version of a file: if it is the same, the file has not changed. No file has the zero stamp.
type stamp struct {
	dev, ino, size int64
	mtime, ctime   unix.Timespec
}

// file is one manifest file, or what a URL serves: its last valid content, and what is wrong with it now.
type file struct {
	stamp   stamp
	changed time.Time // when the file last changed; zero if that is not known
	good    manifest.File
	goodSum [sha256.Size]byte // of the bytes that good was read from
	everOK  bool
	errs    []error
}

// listFiles returns the files at path, a directory or a file, and problems with its other entries. Hidden files are
// left out. A path that does not exist has no files.
func listFiles(path string) (files []string, problems []Problem, err error) {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	case !fi.IsDir():
		return []string{path}, nil, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		file := filepath.Join(path, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		fi, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed just now, or a dangling link
			continue
		case err != nil:
			files = append(files, file) // reading it returns the error
		case fi.IsDir():
			problems = append(problems, Problem{Source: SourceFile, File: file, Message: "ignored: it is a directory"})
		default:
			files = append(files, file)
		}
	}
	return files, problems, nil
}

// stampOf returns the stamp of the file at path, links followed, and the time of its last change: ctime, in the
// kernel's wall clock, zero where links make it meaningless.
func stampOf(path string) (stamp, time.Time, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return stamp{}, time.Time{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	s := stamp{int64(st.Dev), int64(st.Ino), st.Size, st.Mtim, st.Ctim}
	if to, err := filepath.EvalSymlinks(path); err != nil || to != filepath.Clean(path) {
		return s, time.Time{}, nil // a link may have been changed to another file, or directory, of any age
	}
	return s, time.Unix(st.Ctim.Unix()), nil
}

// load updates f from the file at path. It does not read a file that has not changed. It reports whether the file
// changed while it was read: then it must be read again soon, and f stays as it was. A file that has not been read
// before is invalid until then: its pods may run already.
func (f *file) load(path string, o manifest.Origin, running map[types.NamespacedName]Running, now time.Time) (
	again bool) {
	s, changed, err := stampOf(path)
	if err == nil && s == f.stamp {
		return false
	}
	var data []byte
	if err == nil {
		data, err = boundedfile.Read(path, manifest.MaxSize)
	}
	if after, _, err2 := stampOf(path); err == nil && (err2 != nil || after != s) {
		if !f.everOK {
			f.errs = []error{errors.New("it is being written")}
		}
		return true
	}
	if err != nil {
		f.stamp, f.errs = stamp{}, []error{err}
		return false
	}
	f.stamp, f.changed = s, changed
	if now.Sub(time.Unix(s.ctime.Unix())) < racy {
		f.stamp = stamp{}
	}
	f.parse(data, o, running, now)
	return false
}

// parse makes data the content of f if it is valid. New pods that run already keep their UIDs.
func (f *file) parse(data []byte, o manifest.Origin, running map[types.NamespacedName]Running, now time.Time) {
	f.errs = nil
	sum := sha256.Sum256(data)
	if f.everOK && sum == f.goodSum {
		return
	}
	got, errs := manifest.Parse(data, o)
	if f.errs = errs; len(errs) > 0 {
		return
	}
	for i, p := range got.Pods {
		same := func(known manifest.Pod) bool { return known.Hash == p.Hash }
		if known := slices.IndexFunc(f.good.Pods, same); known >= 0 {
			got.Pods[i] = f.good.Pods[known] // it keeps its UID and the time when it was first seen
			continue
		}
		p.Annotations[podutil.AnnotationSeen] = seenAt(now)
		if r, runs := running[nameOf(p.Pod)]; runs && string(r.Source) == o.Source && p.Gets(r.UID) {
			r.adopt(p)
		}
	}
	f.good, f.goodSum = got, sum
	f.everOK = true
}
