package pressure

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// stall asks the kernel for a notification when tasks have waited for memory for 150 ms within a second, in
// microseconds.
const stall = "some 150000 1000000"

// WatchMemory calls short each time the kernel reports that tasks wait for memory (pressure stall information), at most
// once a second, until ctx ends. On a kernel without pressure stall information it returns an error at once.
func (p Proc) WatchMemory(ctx context.Context, short func()) error {
	f, err := os.OpenFile(p.path("pressure/memory"), os.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("watch memory pressure: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString(stall + "\x00"); err != nil {
		return fmt.Errorf("watch memory pressure: %w", err)
	}
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("create an eventfd: %w", err)
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-stopped // it writes to end, which is closed next
		}
		unix.Close(end)
	}()
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}, {Fd: int32(end), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for memory pressure: %w", err)
		}
		switch {
		case fds[0].Revents&unix.POLLERR != 0:
			return errors.New("wait for memory pressure: the kernel has ended the notification")
		case fds[0].Revents&unix.POLLPRI != 0:
			short()
		}
	}
	return ctx.Err()
}
