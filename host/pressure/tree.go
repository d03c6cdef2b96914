package pressure

import (
	"context"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Tree is the disk space and the files below a directory, without what is mounted there. A file with several names counts
// once. What goes away meanwhile does not count; ctx bounds the walk.
func Tree(ctx context.Context, dir string) (bytes, inodes int64, err error) {
	var top unix.Stat_t
	if err := unix.Lstat(dir, &top); err != nil {
		return 0, 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	type name struct{ dev, ino uint64 }
	twice := map[name]bool{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil {
			return nil // it went away
		}
		if st.Dev != top.Dev {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			n := name{uint64(st.Dev), st.Ino}
			if twice[n] {
				return nil
			}
			twice[n] = true
		}
		bytes += st.Blocks * 512
		inodes++
		return nil
	})
	return bytes, inodes, err
}
