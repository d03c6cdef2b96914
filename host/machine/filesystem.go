package machine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FileSystem has the size of a file system and what is left of it, in bytes and inodes.
type FileSystem struct {
	Size uint64
	// Free has what no file uses, Available what users other than root may still use.
	Free, Available    uint64
	Inodes, InodesFree uint64
}

// ReadFileSystem reads the file system that holds path.
func ReadFileSystem(path string) (FileSystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return FileSystem{}, fmt.Errorf("read the size of the file system of %s: %w", path, err)
	}
	return sizes(&s), nil
}

// sizes converts blocks to bytes. As in statvfs, they have the fragment size: with FUSE, such as virtiofs, the block
// size may be a larger one that is only best for I/O.
func sizes(s *unix.Statfs_t) FileSystem {
	block := uint64(s.Frsize)
	return FileSystem{
		Size:       s.Blocks * block,
		Free:       s.Bfree * block,
		Available:  s.Bavail * block,
		Inodes:     s.Files,
		InodesFree: s.Ffree,
	}
}
