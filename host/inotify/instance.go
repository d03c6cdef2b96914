package inotify

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// changesOf are the events that count as a change: of content and names, not of permissions.
	changesOf = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// bufferSize is enough for several events; one takes at most 272 bytes.
	bufferSize = 4 << 10
)

// Event is one event of an instance (inotify(7)).
type Event struct {
	// Watch is the descriptor that Instance.Watch returned.
	Watch int32
	// Name is the name of the file in the watched directory; empty if the watched file itself has changed.
	Name string
	// Lost reports that events were lost, or that the instance cannot be read any more. Anything may have changed.
	Lost bool
	// Removed reports that the file named Name was removed from the directory, not moved to another name.
	Removed bool
	// Moved reports that the watched file or directory has another path now.
	Moved bool
	// Ended reports that the kernel has removed the watch, which does not mean that the file has changed.
	Ended bool
}

// Instance is an inotify instance of the kernel. A user may have only a few: sysctl fs.inotify.max_user_instances.
type Instance struct {
	file *os.File
	// conn is the descriptor of file, whose number may belong to another file once file is closed.
	conn syscall.RawConn
}

// Open returns an instance without watches. It calls report with each event, one after the other, until the instance is
// closed.
func Open(report func(Event)) (*Instance, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an inotify instance: %w; if there are too many, raise the sysctl "+
			"fs.inotify.max_user_instances", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	i := &Instance{file, conn}
	go i.read(report)
	return i, nil
}

// Watch watches a file, or a directory and its direct entries, and returns the watch descriptor. A path that is watched
// already keeps its descriptor.
func (i *Instance) Watch(path string) (int32, error) {
	var wd int
	var err error
	closed := i.conn.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), path, changesOf) })
	if err := cmp.Or(closed, err); err != nil {
		return 0, watchError(path, err)
	}
	return int32(wd), nil
}

// watchError is the error of a path that cannot be watched. The kernel says "no space left on device" for too many
// watches, which is not about a disk.
func watchError(path string, err error) error {
	failed := &os.PathError{Op: "watch", Path: path, Err: err}
	if !errors.Is(err, unix.ENOSPC) {
		return failed
	}
	return fmt.Errorf("%w: too many inotify watches, raise the sysctl fs.inotify.max_user_watches", failed)
}

// Unwatch ends a watch. It does nothing if the watch has ended.
func (i *Instance) Unwatch(wd int32) {
	_ = i.conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
}

// Close ends the instance with its watches. It does not wait for a running call of report.
func (i *Instance) Close() { i.file.Close() }

func (i *Instance) read(report func(Event)) {
	buf := make([]byte, bufferSize)
	for {
		n, err := i.file.Read(buf)
		if err != nil {
			report(Event{Lost: true}) // so that the reader does not wait for events that never come
			return
		}
		for events := buf[:n]; len(events) >= unix.SizeofInotifyEvent; {
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
			report(decode(events[:end]))
			events = events[end:]
		}
	}
}

func decode(event []byte) Event {
	mask := binary.NativeEndian.Uint32(event[4:])
	return Event{
		Watch:   int32(binary.NativeEndian.Uint32(event)),
		Name:    strings.TrimRight(string(event[unix.SizeofInotifyEvent:]), "\x00"),
		Lost:    mask&unix.IN_Q_OVERFLOW != 0,
		Removed: mask&unix.IN_DELETE != 0,
		Moved:   mask&unix.IN_MOVE_SELF != 0,
		Ended:   mask&unix.IN_IGNORED != 0,
	}
}
