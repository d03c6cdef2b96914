package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// UnpackedEnv is the environment variable with a directory from UnpackImages, on the file system of the testbeds' state
// directories. The first node takes the images out of it, if its runtime has unpacked them, and does not import them.
const UnpackedEnv = "NODELET_TESTBED_UNPACKED"

// unpackedList is the file of the directory with the names of the archives.
const unpackedList = "archives"

// UnpackImages gives archives to a container runtime that runs for this only, and leaves its root directory below dir.
// runtime is a value of Options.Runtime.
func (c *Cache) UnpackImages(ctx context.Context, runtime string, archives []string, dir string) error {
	unpack := c.unpackContainerd
	if runtimeRole(runtime) == roleCRIO {
		unpack = c.unpackCRIO
	}
	if err := unpack(ctx, archives, dir); err != nil {
		return fmt.Errorf("unpack images: %w", err)
	}
	var names []string
	for _, archive := range archives {
		names = append(names, filepath.Base(archive))
	}
	return os.WriteFile(filepath.Join(dir, unpackedList), []byte(strings.Join(names, "\n")), 0o644)
}

func (c *Cache) unpackContainerd(ctx context.Context, archives []string, dir string) error {
	programs, err := c.Programs(ctx, roleContainerd)
	if err != nil {
		return err
	}
	run, err := os.MkdirTemp("", "containerd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(run)
	config, socket := filepath.Join(run, "config.toml"), filepath.Join(run, "containerd.sock")
	text := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\ndisabled_plugins = %s\n[grpc]\n  address = %q\n",
		filepath.Join(dir, roleContainerd), run, `["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]`, socket)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	argv := []string{filepath.Join(programs, roleContainerd), "--config", config, "--log-level", "error"}
	return whileRuns(ctx, argv, func(ctx context.Context) error {
		return importInto(ctx, filepath.Join(programs, "ctr"), socket, archives)
	})
}

// whileRuns runs a runtime while do works with it; do's context ends with the runtime. A runtime that has ended has
// written all of its database.
func whileRuns(ctx context.Context, argv []string, do func(context.Context) error) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		cancel()
	}()
	if err := errors.Join(do(ctx), cmd.Process.Signal(syscall.SIGTERM), <-ended); err != nil {
		return fmt.Errorf("%w\n%s", err, log.String())
	}
	return nil
}

// importInto waits until a containerd that has just been started answers, and imports archives.
func importInto(ctx context.Context, ctr, socket string, archives []string) error {
	for end := time.Now().Add(startLimit); ; time.Sleep(50 * time.Millisecond) {
		_, err := run(ctx, ctr, "--address", socket, "version")
		if err == nil {
			break
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("wait for containerd: %w", err)
		}
	}
	for _, archive := range archives {
		if _, err := run(ctx, ctr, "--address", socket, "--namespace", "k8s.io", "images", "import", archive); err != nil {
			return err
		}
	}
	return nil
}

// takeUnpacked gives the node's runtime, which does not run yet, the unpacked images, unless another node has them.
func takeUnpacked(n *Node) error {
	dir := os.Getenv(UnpackedEnv)
	if dir == "" || n.tb.debianRuntime {
		return nil
	}
	list, err := os.ReadFile(filepath.Join(dir, unpackedList))
	if err == nil {
		runtime := runtimeRole(n.tb.opts.Runtime)
		err = os.Rename(filepath.Join(dir, runtime), filepath.Join(n.dir, runtime))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	n.Runtime.unpacked = strings.Fields(string(list))
	return err
}
