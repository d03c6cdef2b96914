package systemd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// firstDescriptor is the number of the first descriptor that systemd passes (SD_LISTEN_FDS_START).
const firstDescriptor = 3

// Keep stores a copy of f with systemd, which passes it to the next process of the unit (FileDescriptorStoreMax).
// Without systemd it does nothing.
func Keep(name string, f *os.File) error {
	addr := os.Getenv("NOTIFY_SOCKET")
	if addr == "" {
		return nil
	}
	// net.UnixConn cannot send descriptors over a connected datagram socket.
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Sendmsg(sock, []byte("FDSTORE=1\nFDNAME="+name), unix.UnixRights(int(f.Fd())),
			&unix.SockaddrUnix{Name: addr}, 0),
			unix.Close(sock))
	}
	if err != nil {
		return fmt.Errorf("store descriptor %s with systemd: %w", name, err)
	}
	return nil
}

// kept returns the descriptors that systemd has passed, by name. Each can be taken once.
var kept = sync.OnceValue(func() map[string]*os.File {
	all := map[string]*os.File{}
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return all
	}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || n < 0 || n > 64 {
		return all
	}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range n {
		fd := firstDescriptor + i
		unix.CloseOnExec(fd)
		name := ""
		if i < len(names) {
			name = names[i]
		}
		if all[name] != nil {
			_ = unix.Close(fd) // a second one with the same name is not used
			continue
		}
		all[name] = os.NewFile(uintptr(fd), name)
	}
	return all
})

// KeptDescriptor returns the descriptor that an earlier process has stored under name, or nil.
func KeptDescriptor(name string) *os.File {
	f := kept()[name]
	delete(kept(), name)
	return f
}
