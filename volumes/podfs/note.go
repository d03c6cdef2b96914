package podfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// noteName is the extended attribute that holds a file's note. Containers cannot read it: that takes CAP_SYS_ADMIN of
// the host. It comes and goes with the file, so that the two always agree.
const noteName = "trusted.nodelet.note"

const noteMax = 256

// writeNote keeps a note with an open file. Where the file system keeps none it is lost, which its readers bear.
func writeNote(f *os.File, note string) {
	if note != "" {
		_ = unix.Fsetxattr(int(f.Fd()), noteName, []byte(note), 0)
	}
}

// readNote reads what writeNote has kept, or nothing.
func readNote(f *os.File) string {
	text := make([]byte, noteMax)
	n, err := unix.Fgetxattr(int(f.Fd()), noteName, text)
	if err != nil {
		return ""
	}
	return string(text[:n])
}
