// Package faulttest brings faults to the process that runs a test: a listener that fails, no free file descriptor.
//
// It owns the limit of open files of the process while a test has none. Tests of servers and watchers call it, one at a
// time. A crash leaves nothing behind.
package faulttest

import (
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/internal/backoff"
)

// BreakListener makes the listener at a path or at an IPv4 address and port fail: its Accept returns an error.
// BreakListener returns when the server has closed the listener.
func BreakListener(t testing.TB, addr string) {
	t.Helper()
	fd := find(t, addr)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	socket, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket) // not before: it wakes the goroutine in Accept
	if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	network := "tcp"
	if addr[0] == '/' {
		network = "unix"
	}
	c, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for isNull(fd) && backoff.Sleep(t.Context(), time.Millisecond) {
	}
}

// isNull reports whether a descriptor is that of the null device.
func isNull(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Rdev == unix.Mkdev(1, 3)
}

// find returns the descriptor of the listener at addr.
func find(t testing.TB, addr string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err == nil && listening != 0 && name(fd) == addr {
			return fd
		}
	}
	t.Fatalf("no listener at %s", addr)
	return -1
}

// name returns the address of a socket, empty if it is of another kind.
func name(fd int) string {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return ""
	}
	switch sa := sa.(type) {
	case *unix.SockaddrUnix:
		return sa.Name
	case *unix.SockaddrInet4:
		return net.JoinHostPort(net.IP(sa.Addr[:]).String(), strconv.Itoa(sa.Port))
	}
	return ""
}

// NoFiles lets no file or socket be opened until restore is called or the test ends.
func NoFiles(t testing.TB) (restore func()) {
	t.Helper()
	f, err := os.Open(os.DevNull) // the runtime may need descriptors of its own for the first file
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}
