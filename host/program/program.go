// Package program runs programs that others have installed, such as network plugins and credential providers.
//
// It owns how such a program ends, together with all that it has started, and how much of its output is kept. It never
// decides which program runs or what its output means: the packages that call it do. A program that runs when the agent
// crashes goes on to its end.
package program

import (
	"context"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command returns a command in a process group of its own. The end of ctx kills the whole group, because such programs
// run others as children.
func Command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // a process outside of the group may hold the pipes
	return cmd
}

// Output keeps the first Limit bytes that are written to it and discards the others. The buffer is not embedded: its
// ReadFrom would exceed the limit.
type Output struct {
	Limit int
	// Overflow is called when there are bytes to discard. Nil: it is not called.
	Overflow func()

	kept []byte
}

// Write implements io.Writer. It never fails.
func (o *Output) Write(p []byte) (int, error) {
	free := o.Limit - len(o.kept)
	o.kept = append(o.kept, p[:min(free, len(p))]...)
	if len(p) > free && o.Overflow != nil {
		o.Overflow()
	}
	return len(p), nil
}

// Bytes returns what is kept.
func (o *Output) Bytes() []byte { return o.kept }
