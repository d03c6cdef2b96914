// Command vm proves the Debian packages in a booted machine: systemd as PID 1, the systemd cgroup driver, containerd.
//
// A machine is one of three kinds. qemu's is emulated, with cgroup v2, without a network: slow, but all of it is real,
// and it can lose its power. One of namespaces starts the same disk on this machine's kernel: fast, and several can be
// joined by a cable. One of User-Mode Linux has a kernel of its own with cgroup v2, which runs as a process of this
// machine: it boots in seconds. `make vm` proves the service on the first kind, `make vm-storage` volumes that need a
// server, `make kubeadm` a cluster of two machines of the second, `make fleet` the tools of packaging/rollout on such a
// cluster, `make vm2` a node on cgroup v2 on the third;
// `make vm2 T=root` runs the tests on real parts in two of the third, T=conformance and T=differential the programs of
// these names in one, T=kubeadm what `make kubeadm` does in two.
//
// It owns its machines, which die with it, and the parts that they are built from, which stay in the user's cache. It
// never touches the machine it runs on, except that cache and Debian packages that it needs. A crash leaves a directory
// in the temporary directory, with namespaces also empty cgroups, and no process.
package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"maps"
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
	var o options
	flag.StringVar(&o.machine, "machine", "qemu", "the machine's kind: qemu, namespaces or uml")
	flag.BoolVar(&o.kubeadm, "kubeadm", false,
		"prove a cluster that kubeadm makes, on machines of namespaces; with -machine uml on cgroup v2")
	flag.BoolVar(&o.fleet, "fleet", false,
		"prove packaging/rollout on a cluster that kubeadm makes, on machines of namespaces")
	flag.BoolVar(&o.storage, "storage", false, "prove volumes of nfs and iscsi, on qemu's machine")
	flag.BoolVar(&o.v2, "v2", false, "prove a node on cgroup v2, on a machine of User-Mode Linux")
	flag.BoolVar(&o.rollout, "rollout", false, "run the commands of docs/rollout.md, on a machine of User-Mode Linux")
	flag.StringVar(
		&o.inside,
		"inside",
		"",
		"run a program in a machine of User-Mode Linux: root, conformance or differential; "+
			"the arguments after the flags are the program's; -- begins those of one more, in a machine of its own",
	)
	skip := flag.String("skip", "", "a regular expression: steps to leave out")
	flag.Parse()
	if o.v2 || o.rollout || o.inside != "" {
		o.machine = "uml"
	}
	if _, ok := insidePrograms[o.inside]; !ok && o.inside != "" {
		fmt.Printf("-inside %q: use one of %q\n", o.inside, slices.Sorted(maps.Keys(insidePrograms)))
		os.Exit(2)
	}
	o.deb, o.skip = *deb, *skip
	if err := prove(o); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1)
	}
	fmt.Println("PASS")
}

// options say what is proved, and in which kind of machine.
type options struct {
	deb, machine, inside, skip string
	kubeadm, storage, v2       bool
	rollout, fleet             bool
}

func (o options) parts(ctx context.Context) (*parts, error) {
	if o.machine == "uml" {
		return getUMLParts(ctx)
	}
	switch {
	case o.storage:
		return getParts(ctx, "storage")
	case o.fleet:
		return getParts(ctx, "fleet")
	}
	return getParts(ctx, "")
}

// gatherer returns the files that one kind of proof needs.
type gatherer func(context.Context, *testbed.Cache) ([]string, error)

// files returns what gathers the files of the machine's payload.
func (o options) files(dir string) gatherer {
	switch {
	case o.kubeadm:
		return clusterFiles
	case o.fleet:
		return func(ctx context.Context, cache *testbed.Cache) ([]string, error) {
			return fleetFiles(ctx, cache, dir)
		}
	case o.storage:
		return func(ctx context.Context, cache *testbed.Cache) ([]string, error) {
			return storageFiles(ctx, cache, dir)
		}
	case o.inside != "":
		return func(ctx context.Context, _ *testbed.Cache) ([]string, error) {
			return insideFiles(ctx, dir, insidePrograms[o.inside])
		}
	case o.v2:
		return func(ctx context.Context, cache *testbed.Cache) ([]string, error) {
			return v2Files(ctx, cache, dir)
		}
	}
	return serviceFiles
}

func prove(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	p, err := o.parts(ctx)
	if err != nil {
		return err
	}
	restore := func() {}
	if o.machine == "uml" {
		if restore, err = machineMappings().allow(); err != nil {
			return err
		}
	}
	defer restore()
	dir, err := os.MkdirTemp("", "nodelet-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	skipped, err := pattern(o.skip)
	if err != nil {
		return err
	}
	payload, err := makePayload(ctx, dir, o.deb, o.files(dir))
	if err != nil {
		return err
	}
	machines, err := newMachines(ctx, p, o, dir, payload)
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
			restore()
			fmt.Println("interrupted")
			os.Exit(1)
		case <-ended:
		}
	}()
	switch {
	case o.kubeadm:
		return newCluster(ctx, machines, skipped).prove()
	case o.fleet:
		return (&fleet{newCluster(ctx, machines, skipped)}).prove()
	case o.inside != "":
		return proveInside(machines, insidePrograms[o.inside], skipped)
	}
	s := &scenario{m: machines[0], began: time.Now(), stableFor: 5 * time.Second, skip: skipped, staying: len(pods)}
	switch {
	case o.storage:
		return (&storageScenario{scenario: s}).prove()
	case o.rollout:
		return (&rollout{scenario: s}).prove()
	case o.v2:
		s.staying = len(v2Limits)
		return (&v2Scenario{scenario: s, uml: machines[0].(*umlMachine)}).prove()
	}
	return s.prove()
}

// pattern compiles an expression; nil stands for none.
func pattern(expression string) (*regexp.Regexp, error) {
	if expression == "" {
		return nil, nil
	}
	return regexp.Compile(expression)
}

// newMachines makes the machines, switched off: one, or several for a cluster or for several programs.
func newMachines(ctx context.Context, p *parts, o options, dir, payload string) ([]box, error) {
	switch {
	case o.kubeadm && o.machine == "uml":
		return newUMLCluster(p, dir, payload)
	case o.kubeadm, o.fleet:
		one, err := newNSMachine(p, "one", dir, payload)
		if err != nil {
			return nil, err
		}
		two, err := newNSMachine(p, "two", dir, payload)
		return []box{one, two}, err
	case o.machine == "namespaces":
		m, err := newNSMachine(p, "vm", dir, payload)
		if err != nil {
			return nil, err
		}
		m.address = addrOne
		return []box{m}, nil
	case o.machine == "qemu":
		m, err := newMachine(ctx, p, dir, payload)
		return []box{m}, err
	case o.inside != "":
		return newInside(ctx, p, dir, payload, insidePrograms[o.inside])
	case o.machine == "uml":
		return []box{&umlMachine{kernel: p.kernel, disk: p.disk, dir: dir, memory: "2G"}}, nil
	}
	return nil, fmt.Errorf("-machine %q: use qemu, namespaces or uml", o.machine)
}

// makePayload makes the directory of what the machines get beside Debian and the runtime.
func makePayload(ctx context.Context, dir, deb string, gather gatherer) (string, error) {
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
	for _, name := range []string{
		"config.yaml", "pod.yaml", "storage.yaml", "kubelet.service", "10-kubeadm.conf", "kubeadm.yaml", "v2.yaml",
		"v2-pods.yaml", "v2-reserved.yaml", "v2-later.yaml",
	} {
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

// isAgnhost reports whether a file is the archive of agnhost, which the machines' pods do not need, and which is large.
func isAgnhost(file string) bool { return strings.HasPrefix(filepath.Base(file), "agnhost-") }

// serviceFiles are for one machine: the real kubelet, and the images of its pods.
func serviceFiles(ctx context.Context, cache *testbed.Cache) ([]string, error) {
	kubelet, err := cache.Program(ctx, "kubernetes", "kubelet")
	if err != nil {
		return nil, err
	}
	images, err := cache.Images(ctx)
	return append(slices.DeleteFunc(images, isAgnhost), kubelet), err
}

// storageFiles are the images of its pods, and the tests of a driver that need a target.
func storageFiles(ctx context.Context, cache *testbed.Cache, dir string) ([]string, error) {
	tests := filepath.Join(dir, "iscsi.test")
	if err := run(ctx, "", "go", "test", "-c", "-o", tests, "./volumes/iscsi"); err != nil {
		return nil, err
	}
	images, err := cache.Images(ctx)
	return append(slices.DeleteFunc(images, isAgnhost), tests), err
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
	return slices.DeleteFunc(files, isAgnhost), nil
}
