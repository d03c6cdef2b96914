package block

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// run runs a tool that writes to the device, and returns what it printed. It waits for the end of the tool even if ctx
// is done earlier: a tool that is killed leaves a damaged file system. The tool inherits the lock and writes to no
// pipe, so that both outlast the agent.
func (d *Device) run(ctx context.Context, tool string, args ...string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := d.unchanged(); err != nil {
		return "", err
	}
	out, err := memoryFile("output of " + tool)
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := exec.Command(tool, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{d.file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals to the agent's process group are not for it
	err = cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("there is no %s on this node: install it: %w", tool, err)
	}
	text, readErr := io.ReadAll(io.NewSectionReader(out, 0, maxOutput))
	return strings.TrimSpace(string(text)), errors.Join(err, readErr)
}

// maxOutput bounds what goes into an error.
const maxOutput = 16 << 10

// memoryFile creates a file that is in no directory.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// exitCode returns the exit code of a tool that ended by itself.
func exitCode(err error) (code int, ok bool) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || !exit.Exited() {
		return 0, false
	}
	return exit.ExitCode(), true
}
