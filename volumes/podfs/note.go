package podfs

import (
	"os"

	"golang.org/x/sys/unix"
)

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
