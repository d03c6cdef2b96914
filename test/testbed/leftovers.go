package testbed

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Leftovers lists what is left of pods on all nodes; see Node.Leftovers.
func (tb *Testbed) Leftovers(ctx context.Context) ([]string, error) {
	var all []string
	var errs []error
	for _, n := range tb.Nodes {
		left, err := n.Leftovers(ctx)
		all, errs = append(all, left...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Leftovers lists what is left of pods on the node, one line each: sandboxes and containers in the runtime, mounts,
// pod and log directories, log links, volumes of CSI drivers, cgroups, network interfaces, addresses and CNI results.
// It is empty when all pods are gone and everything is cleaned up. The runtime must run.
func (n *Node) Leftovers(ctx context.Context) ([]string, error) {
	var left []string
	var errs []error
	for _, look := range []func(context.Context) ([]string, error){
		n.runtimeLeftovers, n.mountLeftovers, n.fileLeftovers, n.cgroupLeftovers, n.linkLeftovers,
	} {
		found, err := look(ctx)
		for _, f := range found {
			left = append(left, n.Name+": "+f)
		}
		errs = append(errs, err)
	}
	return left, errors.Join(errs...)
}

func (n *Node) runtimeLeftovers(ctx context.Context) ([]string, error) {
	client, closeConn, err := n.Runtime.CRI()
	if err != nil {
		return nil, err
	}
	defer closeConn()
	sandboxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var left []string
	for _, s := range sandboxes.Items {
		left = append(left, fmt.Sprintf("sandbox %s of pod %s/%s, %s", s.Id, s.Metadata.GetNamespace(), s.Metadata.GetName(),
			s.State))
	}
	for _, c := range containers.Containers {
		left = append(left, fmt.Sprintf("container %s (%s), %s", c.Id, c.Metadata.GetName(), c.State))
	}
	return left, nil
}

// mountLeftovers lists mounts below the agent's root directory and the runtime's state directory, which contains the
// containers' root file systems and the pods' network namespaces. It ignores a bind mount of the root directory on
// itself, with which an agent makes the directory shared.
func (n *Node) mountLeftovers(context.Context) ([]string, error) {
	table, err := os.Open(procFile(n.Runtime.PID(), "mountinfo"))
	if err != nil {
		return nil, err
	}
	defer table.Close()
	mounts, err := mountinfo.GetMountsFromReader(table, func(m *mountinfo.Info) (skip, stop bool) {
		root := filepath.Base(m.Mountpoint) == "merged" && below(m.Mountpoint, filepath.Join(n.dir, "crio")) &&
			!strings.HasPrefix(m.Options, "ro,") // CRI-O keeps the mount of an image volume
		return !root && !strings.HasPrefix(m.Mountpoint, n.RootDir+"/") && !below(m.Mountpoint, filepath.Join(n.dir, "run")),
			false
	})
	var left []string
	for _, m := range mounts {
		left = append(left, "mount "+m.Mountpoint)
	}
	return left, err
}

func (n *Node) fileLeftovers(context.Context) ([]string, error) {
	var left []string
	for _, g := range []struct{ what, pattern string }{
		{"pod directory", filepath.Join(n.RootDir, "pods", "*")},
		{"log directory", filepath.Join(n.PodLogsDir, "*")},
		{"address", filepath.Join(n.dir, "cni/ipam", n.tb.cniNetwork(n.index), "[1f][0d]*")},
		{"address", filepath.Join(n.RootDir, "cni/addresses/*", "[1f][0d]*")},
		{"record of a volume", filepath.Join(n.RootDir, "nodelet/csi", "*")},
		{"volume", filepath.Join(n.RootDir, "plugins/kubernetes.io/csi/*", strings.Repeat("[0-9a-f]", sha256.Size*2))},
		{"device", filepath.Join(n.RootDir, "plugins/kubernetes.io/csi/volumeDevices/*/*")},
		{"network record", filepath.Join(n.RootDir, "cni/sandboxes", "*")},
		{"CNI result", filepath.Join(cniResults, n.tb.cniNetwork(n.index)+"-*")},
	} {
		found, err := filepath.Glob(g.pattern)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			left = append(left, g.what+" "+f)
		}
	}
	links, err := logLinks(n.PodLogsDir)
	for _, l := range links {
		left = append(left, "log link "+l)
	}
	return left, err
}

// logLinks lists the links in /var/log/containers that point below dir.
func logLinks(dir string) ([]string, error) {
	entries, err := os.ReadDir(containerLogs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var links []string
	for _, e := range entries {
		path := filepath.Join(containerLogs, e.Name())
		if to, err := os.Readlink(path); err == nil && below(to, dir) {
			links = append(links, path)
		}
	}
	return links, nil
}

// cgroupLeftovers lists the topmost cgroups below the node's cgroup, except those of the QoS classes.
func (n *Node) cgroupLeftovers(context.Context) ([]string, error) {
	dirs, err := cgroupDirs(n.cgroup())
	own := []string{n.cgroup(), n.cgroup("kubepods")}
	for _, class := range []string{"burstable", "besteffort"} {
		own = append(own, n.cgroup("kubepods", class))
	}
	var left []string
	for _, d := range dirs {
		if slices.ContainsFunc(own, func(path string) bool { return strings.HasSuffix(d, path) }) {
			continue
		}
		if len(left) == 0 || !strings.HasPrefix("cgroup "+d, left[len(left)-1]+"/") {
			left = append(left, "cgroup "+d)
		}
	}
	return left, err
}

// linkLeftovers lists the host ends of pods' veth pairs, which are ports of the CNI bridge.
func (n *Node) linkLeftovers(ctx context.Context) ([]string, error) {
	out, err := n.Exec(ctx, "ip", "-o", "link", "show", "type", "veth")
	var left []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, " master cni0 ") || strings.Contains(line, " master nodelet0 ") {
			left = append(left, "interface "+strings.TrimSuffix(strings.Fields(line)[1], ":"))
		}
	}
	return left, err
}
