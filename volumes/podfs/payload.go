package podfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxFileName = 255
	maxPath     = 4096
)

// file is one file of a volume.
type file struct {
	data []byte
	mode uint32 // permission bits only
	uid  *int64 // owner; nil: root
	note string // kept beside the content, where containers do not see it
}

// payload is the content of a volume by clean relative path.
type payload map[string]file

// set adds a file. A later file takes the place of an earlier one with the same path, as in the kubelet's
// projected volumes.
func (p payload) set(path string, f file) error {
	if err := checkPath(path); err != nil {
		return err
	}
	f.mode &= 0o777
	p[filepath.Clean(path)] = f
	return nil
}

// checkTree returns an error if a file has the path of a directory that another file needs.
func (p payload) checkTree() error {
	for path := range p {
		for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
			if _, ok := p[dir]; ok {
				return fmt.Errorf("invalid path: %s is needed both as a file and as the directory of %s", dir, path)
			}
		}
	}
	return nil
}

// checkPath returns an error for a path that leads out of the volume or that the file system cannot store, and for
// names that begin with "..", which are reserved for atomic updates.
func checkPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("invalid path: must not be empty: %q", path)
	case strings.HasPrefix(path, "/"):
		return fmt.Errorf("invalid path: must be relative path: %s", path)
	case len(path) > maxPath:
		return fmt.Errorf("invalid path: must be less than or equal to %d characters", maxPath)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("invalid path: must not contain a NUL character: %q", path)
	case filepath.Clean(path) == ".":
		return fmt.Errorf("invalid path: must name a file: %s", path)
	}
	for element := range strings.SplitSeq(path, "/") {
		if element == ".." {
			return fmt.Errorf("invalid path: must not contain '..': %s", path)
		}
		if len(element) > maxFileName {
			return fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", maxFileName)
		}
	}
	// Clean first: "./..data" begins with "..", too.
	if strings.HasPrefix(filepath.Clean(path), "..") {
		return fmt.Errorf("invalid path: must not start with '..': %s", path)
	}
	return nil
}

// noteName is the extended attribute with the note of a file. Containers cannot read it: that takes CAP_SYS_ADMIN of
// the host. It is removed with the file, so that the two always agree.
const noteName = "trusted.nodelet.note"

const noteMax = 256

// writeNote stores a note with an open file. A file system without extended attributes loses it; readers must expect
// that.
func writeNote(f *os.File, note string) {
	if note != "" {
		_ = unix.Fsetxattr(int(f.Fd()), noteName, []byte(note), 0)
	}
}

// readNote returns the note that writeNote has stored, or "".
func readNote(f *os.File) string {
	text := make([]byte, noteMax)
	n, err := unix.Fgetxattr(int(f.Fd()), noteName, text)
	if err != nil {
		return ""
	}
	return string(text[:n])
}
