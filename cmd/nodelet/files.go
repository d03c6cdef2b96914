package main

import "golang.org/x/sys/unix"

// openFiles is how many files the agent opens before the kernel's table of them has to grow: some for each followed log
// and each stream.
const openFiles = 1024

// growFileTable has the kernel make room for openFiles. While that table grows, whoever needs a place in it waits until
// all CPUs have taken notice; in a burst of logs, streams or pods many do, each with an OS thread that the process
// never loses again. It takes some milliseconds, for which nothing needs to wait. Where the limit of open files is
// lower nothing happens.
func growFileTable() {
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, openFiles-1); err == nil {
		_ = unix.Close(fd)
	}
}
