package self

import "golang.org/x/sys/unix"

// openFiles is the number of files that the agent can open before the kernel has to grow the file table: some for each
// followed log and each stream.
const openFiles = 1024

// GrowFileTable makes the kernel grow the file table to openFiles. While it grows, every open() waits for an RCU grace
// period; in a burst of logs, streams or pods many threads would wait, and the process would keep them for ever. It
// takes some milliseconds; nothing has to wait for it. If the limit of open files is lower, it does nothing.
func GrowFileTable() {
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, openFiles-1); err == nil {
		_ = unix.Close(fd)
	}
}
