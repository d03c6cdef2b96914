package iscsi

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Events is a stream of hints that devices may have been added or removed.
type Events interface {
	// Next waits for the next event, or for the end of ctx.
	Next(ctx context.Context) error
	Close() error
}

// uevents are the kernel's own messages about devices. They come after the node in /dev was created, and need no udev.
type uevents struct{ file *os.File }

// maxEvent is larger than any of the kernel's messages.
const maxEvent = 16 << 10

func kernelEvents() (Events, error) {
	const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	const kernel = 1 // the group of messages that come from the kernel
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernel}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &uevents{os.NewFile(uintptr(fd), "uevents")}, nil
}

func (u *uevents) Next(ctx context.Context) error {
	if err := u.file.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = u.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := u.file.Read(make([]byte, maxEvent))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, os.ErrDeadlineExceeded): // some were lost
		return nil
	}
	return err
}

func (u *uevents) Close() error { return u.file.Close() }
