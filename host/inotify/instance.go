package inotify

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// changesOf is what a change is: content and names, not who may read them.
	changesOf = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// bufferSize has room for some events; one takes 272 bytes at most.
	bufferSize = 4 << 10
)

// Event is what an instance tells (inotify(7)).
type Event struct {
	// Watch is the descriptor that Watch gave.
	Watch int32
	// Name is the file's in the directory; empty where the watched file itself has changed.
	Name string
	// Lost: events were lost, also if the instance cannot be read any more. Then anything may have changed.
	Lost bool
	// Moved: what was watched has another path from now on. Ended: the kernel watches it no longer, which is no change by itself.
	Moved, Ended bool
}

// Instance is one of the kernel's inotify instances, of which a user may have few (sysctl fs.inotify.max_user_instances).
type Instance struct {
	file *os.File
	fd   int // of file, which Fd would make blocking
}

// Open makes an instance that watches nothing yet. It calls tell with each event, one after the other, until it is closed.
func Open(tell func(Event)) (*Instance, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch for changes: %w (sysctl fs.inotify.max_user_instances bounds how many)", err)
	}
	i := &Instance{fd: fd, file: os.NewFile(uintptr(fd), "inotify")}
	go i.read(tell)
	return i, nil
}

// Watch watches a file, or a directory and what is right in it. What is watched already keeps its descriptor.
func (i *Instance) Watch(path string) (int32, error) {
	wd, err := unix.InotifyAddWatch(i.fd, path, changesOf)
	if err != nil {
		return 0, &os.PathError{Op: "watch", Path: path, Err: err}
	}
	return int32(wd), nil
}

// Unwatch ends a watch. It does nothing for one that has ended.
func (i *Instance) Unwatch(wd int32) { _, _ = unix.InotifyRmWatch(i.fd, uint32(wd)) }

// Close ends the instance with its watches. A call of tell that runs goes on.
func (i *Instance) Close() { i.file.Close() }

func (i *Instance) read(tell func(Event)) {
	buf := make([]byte, bufferSize)
	for {
		n, err := i.file.Read(buf)
		if err != nil {
			tell(Event{Lost: true}) // nobody must wait for what will not come
			return
		}
		for events := buf[:n]; len(events) >= unix.SizeofInotifyEvent; {
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
			tell(decode(events[:end]))
			events = events[end:]
		}
	}
}

func decode(event []byte) Event {
	mask := binary.NativeEndian.Uint32(event[4:])
	return Event{
		Watch: int32(binary.NativeEndian.Uint32(event)),
		Name:  strings.TrimRight(string(event[unix.SizeofInotifyEvent:]), "\x00"),
		Lost:  mask&unix.IN_Q_OVERFLOW != 0, Moved: mask&unix.IN_MOVE_SELF != 0, Ended: mask&unix.IN_IGNORED != 0,
	}
}
