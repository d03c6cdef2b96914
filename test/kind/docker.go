package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

const (
	// netns is the network namespace of the Docker daemon, so that its bridges and rules do not affect the machine.
	netns = "nodelet-kind"
	// cgroupParent is the parent of all containers' cgroups, in each hierarchy of the machine.
	cgroupParent = "nodelet-kind"
	// nodeImage is the node image with the kubelet, nodeletImage the one with nodelet.
	nodeImage, nodeletImage = "nodelet.test/kind-node:kubelet", "nodelet.test/kind-node:nodelet"
)

// lab is the environment of one run.
type lab struct {
	dir   string // for this run: sockets, the daemon's data, the kubeconfig
	parts string // parts of images; kept after the run
	cache *testbed.Cache
	env   []string
	// kubernetes is the version of the kubelet, and of the control plane.
	kubernetes string
}

func openLab(ctx context.Context) (*lab, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache, err := testbed.OpenCache(os.Stdout)
	if err != nil {
		return nil, err
	}
	l := &lab{dir: "/var/lib/nodelet-kind", parts: filepath.Join(base, "nodelet-kind"), cache: cache}
	if l.kubernetes, err = cache.KubernetesVersion(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(l.parts, 0o755); err != nil {
		return nil, err
	}
	kubectl, err := cache.Programs(ctx, "kubernetes", "kubectl")
	if err != nil {
		return nil, err
	}
	kind, err := cache.Programs(ctx, "kind")
	if err != nil {
		return nil, err
	}
	docker, err := cache.DebianFile(ctx, "docker.io", "usr/bin/docker")
	if err != nil {
		return nil, err
	}
	containerd, err := cache.DebianFile(ctx, "containerd", "usr/bin/containerd")
	if err != nil {
		return nil, err
	}
	// Docker finds its runtime in the directory of this run.
	path := strings.Join([]string{l.dir, filepath.Dir(docker), filepath.Join(filepath.Dir(docker), "../sbin"),
		filepath.Dir(containerd), kind, kubectl, os.Getenv("PATH")}, ":")
	if err := os.Setenv("PATH", path); err != nil {
		return nil, err
	}
	l.env = append(os.Environ(), "DOCKER_HOST=unix://"+l.socket(), "KUBECONFIG="+filepath.Join(l.dir, "kubeconfig"),
		"DOCKER_CONFIG="+l.dir)
	return l, nil
}

func (l *lab) socket() string  { return filepath.Join(l.dir, "docker.sock") }
func (l *lab) pidFile() string { return filepath.Join(l.dir, "docker.pid") }

// run runs a program and returns its standard output.
func run(ctx context.Context, name string, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, name, args...))
}

func output(c *exec.Cmd) (string, error) {
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s%s", strings.Join(c.Args, " "), err, out, stderr.String())
	}
	return string(out), nil
}

// inside returns a command in the daemon's network namespace, where the addresses of the clusters are reachable.
func (l *lab) inside(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + netns, "--"}, args...)...)
	c.Env = l.env
	return c
}

// do runs a command in the daemon's network namespace and returns its standard output.
func (l *lab) do(ctx context.Context, args ...string) (string, error) {
	return output(l.inside(ctx, args...))
}

// startDocker starts the daemon and loads the node image.
func (l *lab) startDocker(ctx context.Context, archive string) error {
	return step("start Docker in a network namespace, load the node image", func() error {
		if err := os.MkdirAll(l.dir, 0o711); err != nil {
			return err
		}
		if err := l.layRuntime(ctx); err != nil {
			return err
		}
		if _, err := run(ctx, "ip", "netns", "add", netns); err != nil {
			return err
		}
		if _, err := run(ctx, "ip", "-n", netns, "link", "set", "lo", "up"); err != nil {
			return err
		}
		log, err := os.Create(filepath.Join(l.dir, "dockerd.log"))
		if err != nil {
			return err
		}
		defer log.Close()
		c := l.inside(context.WithoutCancel(ctx), "dockerd", "--host=unix://"+l.socket(),
			"--data-root="+filepath.Join(l.dir, "data"),
			"--exec-root="+filepath.Join(l.dir, "exec"), "--pidfile="+l.pidFile(), "--cgroup-parent=/"+cgroupParent,
			"--add-runtime=lab="+filepath.Join(l.dir, runtimeName), "--default-runtime=lab")
		c.Stdout, c.Stderr = log, log
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			return err
		}
		go func() { _ = c.Wait() }()
		if err := until(ctx, time.Minute, func() error { _, err := l.do(ctx, "docker", "info"); return err }); err != nil {
			return fmt.Errorf("%w; see %s", err, log.Name())
		}
		_, err = l.do(ctx, "docker", "import", "--change", `ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]`,
			"--change", "ENV container=docker", archive, nodeImage)
		return err
	})
}

// layRuntime installs Docker's container runtime: runc, called through this program.
func (l *lab) layRuntime(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runc, err := l.cache.Programs(ctx, "runc")
	if err != nil {
		return err
	}
	return errors.Join(os.Symlink(self, filepath.Join(l.dir, runtimeName)),
		os.Symlink(filepath.Join(runc, "runc"), filepath.Join(l.dir, "runc")))
}

// until repeats do until it returns no error.
func until(ctx context.Context, timeout time.Duration, ask func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("gave up after %s: %w", timeout, err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// clean removes everything: containers, the daemon, its namespace, cgroups and files. The error names what is left.
func (l *lab) clean() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if pid := l.daemon(); pid != 0 {
		if all, err := l.do(ctx, "docker", "ps", "-aq"); err == nil && strings.TrimSpace(all) != "" {
			if _, err := l.do(ctx, append([]string{"docker", "rm", "-f", "-v"}, strings.Fields(all)...)...); err != nil {
				return err
			}
		}
		if err := unix.Kill(pid, unix.SIGTERM); err != nil {
			return fmt.Errorf("terminate dockerd: %w", err)
		}
		if err := until(ctx, 30*time.Second, func() error {
			if l.daemon() != 0 {
				return errors.New("dockerd is still running")
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return errors.Join(l.cleanNetwork(ctx), l.cleanFiles(ctx), testbed.RemoveCgroup("/"+cgroupParent, 5*time.Second))
}

// daemon returns the process ID of the daemon of this directory, 0 if none is running.
func (l *lab) daemon() int {
	text, err := os.ReadFile(l.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(line), l.pidFile()) {
		return 0
	}
	return pid
}

func (l *lab) cleanNetwork(ctx context.Context) error {
	if _, err := os.Stat("/run/netns/" + netns); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	pids, err := run(ctx, "ip", "netns", "pids", netns)
	if err == nil && strings.TrimSpace(pids) != "" {
		err = fmt.Errorf("processes still run in the network namespace %s: %s", netns, strings.Fields(pids))
	}
	if err != nil {
		return err
	}
	_, err = run(ctx, "ip", "netns", "del", netns)
	return err
}

func (l *lab) cleanFiles(ctx context.Context) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, l.dir+"/") {
			if _, err := run(ctx, "umount", at); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(l.dir)
}
