// Command vm proves the Debian packages in a booted machine: systemd as PID 1, the systemd cgroup driver, containerd.
//
// A machine is one of two kinds. qemu's is emulated, with cgroup v2, without a network: slow, but all of it is real, and it can lose
// its power. One of namespaces starts the same disk on this machine's kernel: fast, and several can be joined by a cable. `make vm`
// proves the service on the first kind, `make vm-storage` volumes that need a server, `make kubeadm` a cluster of two machines of the
// second.
//
// It owns its machines, which die with it, and the parts that they are built from, which stay in the user's cache. It never touches
// the machine it runs on but for that cache and Debian packages that it needs. A crash leaves a directory in the temporary
// directory, with namespaces also empty cgroups, and no process.
package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

//go:embed guest
var guest embed.FS

func main() {
	runtime.LockOSThread() // the machines die with the thread that started them
	deb := flag.String("deb", "bin/nodelet.deb", "the package to prove; beside it lies NAME-kubelet.deb")
	kind := flag.String("machine", "qemu", "the machine's kind: qemu or namespaces")
	kubeadm := flag.Bool("kubeadm", false, "prove a cluster that kubeadm makes, on machines of namespaces")
	storage := flag.Bool("storage", false, "prove volumes of nfs and iscsi, on qemu's machine")
	skip := flag.String("skip", "", "a regular expression: steps to leave out")
	flag.Parse()
	if err := prove(*deb, *kind, *kubeadm, *storage, *skip); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1)
	}
	fmt.Println("PASS")
}

func prove(deb, kind string, kubeadm, storage bool, skip string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	p, err := getParts(ctx, storage)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nodelet-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var skipped *regexp.Regexp
	if skip != "" {
		if skipped, err = regexp.Compile(skip); err != nil {
			return err
		}
	}
	gather := serviceFiles
	switch {
	case kubeadm:
		gather = clusterFiles
	case storage:
		gather = func(ctx context.Context, cache *testbed.Cache) ([]string, error) {
			return storageFiles(ctx, cache, dir)
		}
	}
	payload, err := makePayload(ctx, dir, deb, gather)
	if err != nil {
		return err
	}
	machines, err := newMachines(ctx, p, kind, kubeadm, dir, payload)
	if err != nil {
		return err
	}
	cut := func() {
		for _, m := range machines {
			m.cut()
		}
	}
	defer cut()
	ended := make(chan struct{})
	defer close(ended)
	go func() { // an interrupted run leaves nothing
		select {
		case <-ctx.Done():
			cut()
			_ = os.RemoveAll(dir)
			fmt.Println("interrupted")
			os.Exit(1)
		case <-ended:
		}
	}()
	if kubeadm {
		return newCluster(ctx, machines, skipped).prove()
	}
	s := &scenario{m: machines[0], began: time.Now(), patience: 5 * time.Second, skip: skipped}
	if storage {
		return (&storageScenario{scenario: s}).prove()
	}
	return s.prove()
}

// newMachines makes the machines, switched off: one, or two for a cluster.
func newMachines(ctx context.Context, p *parts, kind string, kubeadm bool, dir, payload string) ([]box, error) {
	switch {
	case kubeadm:
		one, err := newNSMachine(p, "one", dir, payload)
		if err != nil {
			return nil, err
		}
		two, err := newNSMachine(p, "two", dir, payload)
		return []box{one, two}, err
	case kind == "namespaces":
		m, err := newNSMachine(p, "vm", dir, payload)
		if err != nil {
			return nil, err
		}
		m.address = addrOne
		return []box{m}, nil
	case kind == "qemu":
		m, err := newMachine(ctx, p, dir, payload)
		return []box{m}, err
	}
	return nil, fmt.Errorf("-machine %q: say qemu or namespaces", kind)
}

// makePayload makes the directory of what the machines get beside Debian and the runtime.
func makePayload(ctx context.Context, dir, deb string, gather func(context.Context, *testbed.Cache) ([]string, error)) (string, error) {
	payload := filepath.Join(dir, "payload")
	if err := os.Mkdir(payload, 0o755); err != nil {
		return "", err
	}
	cache, err := testbed.OpenCache(os.Stdout)
	if err != nil {
		return "", err
	}
	files, err := gather(ctx, cache)
	if err != nil {
		return "", err
	}
	for _, f := range append(files, deb, strings.TrimSuffix(deb, ".deb")+"-kubelet.deb") {
		if err := run(ctx, "", "cp", "--reflink=auto", f, payload); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"config.yaml", "pod.yaml", "storage.yaml", "kubelet.service", "10-kubeadm.conf", "kubeadm.yaml"} {
		text, err := guest.ReadFile("guest/" + name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(payload, name), text, 0o644); err != nil {
			return "", err
		}
	}
	return payload, nil
}

// serviceFiles are for one machine: the real kubelet, and the images of its pods.
func serviceFiles(ctx context.Context, cache *testbed.Cache) ([]string, error) {
	kubelet, err := cache.Program(ctx, "kubernetes", "kubelet")
	if err != nil {
		return nil, err
	}
	images, err := cache.Images(ctx)
	// The last one is not needed, and large.
	return append(slices.DeleteFunc(images, func(f string) bool { return strings.HasPrefix(filepath.Base(f), "agnhost-") }), kubelet), err
}

// storageFiles are the images of its pods, and the tests of a driver that need a target.
func storageFiles(ctx context.Context, cache *testbed.Cache, dir string) ([]string, error) {
	tests := filepath.Join(dir, "iscsi.test")
	if err := run(ctx, "", "go", "test", "-c", "-o", tests, "./volumes/iscsi"); err != nil {
		return nil, err
	}
	images, err := cache.Images(ctx)
	return append(slices.DeleteFunc(images, func(f string) bool { return strings.HasPrefix(filepath.Base(f), "agnhost-") }), tests), err
}

// clusterFiles are for machines that kubeadm makes a cluster of.
func clusterFiles(ctx context.Context, cache *testbed.Cache) ([]string, error) {
	programs, err := cache.Programs(ctx, "kubernetes", "kubeadm", "kubectl")
	if err != nil {
		return nil, err
	}
	files := []string{filepath.Join(programs, "kubeadm"), filepath.Join(programs, "kubectl")}
	for _, get := range []func(context.Context) ([]string, error){cache.ClusterImages, cache.Images} {
		images, err := get(ctx)
		if err != nil {
			return nil, err
		}
		files = append(files, images...)
	}
	return slices.DeleteFunc(files, func(f string) bool { return strings.HasPrefix(filepath.Base(f), "agnhost-") }), nil
}
