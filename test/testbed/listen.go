package testbed

import (
	"fmt"
	"net"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Listen listens on a port of loopback inside the node's network namespace. The socket stays there; the thread that
// made it ends.
func Listen(n *Node) (net.Listener, error) {
	type answer struct {
		net.Listener
		err error
	}
	done := make(chan answer)
	go func() {
		// Never unlocked: the thread is in another namespace and must not run other goroutines.
		runtime.LockOSThread()
		fd, err := unix.Open(filepath.Join(netnsDir, n.Netns), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err != nil {
			done <- answer{err: fmt.Errorf("enter network namespace %s: %w", n.Netns, err)}
			return
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		done <- answer{l, err}
	}()
	a := <-done
	return a.Listener, a.err
}
