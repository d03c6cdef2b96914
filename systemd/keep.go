package systemd

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// keep stores a copy of f with systemd, which passes it to the next process of the unit (FileDescriptorStoreMax).
// Without systemd it does nothing.
func keep(name string, f *os.File) error {
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
	for _, f := range activation.Files(false) {
		if all[f.Name()] == nil {
			all[f.Name()] = f
			continue
		}
		_ = f.Close() // a second one with the same name is not used
	}
	return all
})

// keptDescriptor returns the descriptor that an earlier process has stored under name, or nil.
func keptDescriptor(name string) *os.File {
	f := kept()[name]
	delete(kept(), name)
	return f
}
