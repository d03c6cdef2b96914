package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

// isolatedEnv is the environment variable that tells the program that isolate has started it.
const isolatedEnv = "NODE_SUITE_ISOLATED"

// enter is a shell script that moves itself to the cgroup $CGROUPS, one directory for each hierarchy, and executes its
// arguments with that cgroup as the root. On cgroup v2 the root of a tree with controllers must not have processes, so
// they go to a child.
const enter = `set -e
for dir in $CGROUPS; do echo $$ >"$dir/cgroup.procs"; done
exec unshare --cgroup sh -c '
	for dir in $CGROUPS; do
		if [ -e "$dir/cgroup.controllers" ]; then
			mkdir -p "$dir/init"
			echo $$ >"$dir/init/cgroup.procs"
		fi
	done
	exec "$@"' sh "$@"
`

// mounts is a shell script that shows its cgroup root and its process IDs in the usual places, and then runs its
// arguments. It stays until they end, because as process 1 it has to wait for processes that have lost their parent. On
// a machine of User-Mode Linux, /run/cpuinfo is what the kubelet has to read of the processors.
const mounts = `set -e
findmnt -rno TARGET,FSTYPE,FS-OPTIONS -t cgroup,cgroup2 | while read -r target type options; do
	umount "$target"
	mount -t $type -o "$options" cgroup "$target"
done
mount -t proc proc /proc
[ ! -e /run/cpuinfo ] || mount --bind /run/cpuinfo /proc/cpuinfo
mount --make-rshared /
"$@"
exit
`

// isolate runs the program again, with cgroups, mounts and process IDs of its own. The specs expect to have the machine
// for themselves: they look for pods in the cgroup /kubepods, and for processes by their names. When the run ends, the
// kernel kills what it has left. The testbed's owner is outside: it clears what killed runs have left, of which the run
// would see files and links, but neither processes nor cgroups.
func isolate(ctx context.Context, o options) error {
	if o.keep || o.use {
		return errors.New("-keep and -use are not for -node: its testbed has namespaces of its own, and ends with them")
	}
	release, err := testbed.Own(ctx, o.testbed.Name, os.Stderr)
	if err != nil {
		return err
	}
	defer release()
	root := "/node-suite-" + o.testbed.Name
	if err := testbed.RemoveCgroup(root, 0); err != nil {
		return fmt.Errorf("another run named %q goes on: %w", o.testbed.Name, err)
	}
	dirs, err := testbed.MakeCgroup(root)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	args := append([]string{"-c", enter, "sh", "unshare", "--mount", "--propagation=private", "--pid", "--fork",
		"--kill-child", "sh", "-c", mounts, "sh", program}, os.Args[1:]...)
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), isolatedEnv+"=1", "CGROUPS="+strings.Join(dirs, " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Minute
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("the run in its own namespaces has failed: %w", err)
	}
	return errors.Join(err, testbed.RemoveCgroup(root, 10*time.Second))
}
