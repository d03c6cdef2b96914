package command

import (
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// RootDirFlag declares --root-dir, which says where the socket of the running agent is.
func RootDirFlag(flags *pflag.FlagSet) *string {
	return flags.String("root-dir", "/var/lib/kubelet", "the agent's --root-dir, a `DIR`")
}

// IsTerminal reports whether a stream of a Call is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(interface{ Fd() uintptr })
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
