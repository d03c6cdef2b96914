package testbed

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The OCI runtimes.
const (
	ociRunc = "runc"
	ociCrun = "crun"
)

// splitRuntime returns both parts of the value of Options.Runtime: the role of the runtime, and the OCI runtime.
func splitRuntime(runtime string) (role, oci string) {
	role, oci, _ = strings.Cut(runtime, "+")
	return cmp.Or(role, roleContainerd), cmp.Or(oci, ociRunc)
}

func validRuntime(runtime string) bool {
	role, oci := splitRuntime(runtime)
	return slices.Contains([]string{roleContainerd, roleCRIO}, role) && slices.Contains([]string{ociRunc, ociCrun}, oci)
}

// runtimeRole returns the role of a node's runtime for the value of Options.Runtime.
func runtimeRole(runtime string) string {
	role, _ := splitRuntime(runtime)
	return role
}

func runtimeName(runtime string) string {
	if runtimeRole(runtime) == roleCRIO {
		return "cri-o"
	}
	return "containerd"
}

// prepareRuntime builds the runtime that the options select.
func (tb *Testbed) prepareRuntime(ctx context.Context) (err error) {
	if _, oci := splitRuntime(tb.opts.Runtime); oci == ociCrun {
		if !tb.cache.lookOnly {
			needs := []need{{pkg: ociCrun, command: ociCrun}}
			if err := installDebian(ctx, tb.opts.Progress, needs); err != nil {
				return err
			}
		}
		if tb.bins.crun, err = exec.LookPath(ociCrun); err != nil {
			return fmt.Errorf("find the OCI runtime (install the Debian package crun): %w", err)
		}
	}
	if tb.opts.crio() {
		return tb.prepareCRIO(ctx)
	}
	tb.bins.containerd, err = tb.cache.Programs(ctx, "containerd")
	return err
}

// ociRuntime returns the path of the OCI runtime.
func (p programs) ociRuntime() string { return cmp.Or(p.crun, filepath.Join(p.runc, ociRunc)) }

// OCIRuntime returns the name and version of a node's OCI runtime, as in "runc 1.5.2".
func OCIRuntime(ctx context.Context, n *Node) (string, error) {
	out, err := run(ctx, n.tb.bins.ociRuntime(), "--version")
	line, _, _ := strings.Cut(out, "\n")
	return strings.Replace(line, " version ", " ", 1), err
}

// RuntimeVersion returns the name and version of a node's container runtime, for example "containerd 2.4.2".
func RuntimeVersion(ctx context.Context, n *Node) (string, error) {
	out, err := n.Crictl(ctx, "version")
	found := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(line, ":")
		found[key] = strings.TrimSpace(value)
	}
	return found["RuntimeName"] + " " + strings.TrimPrefix(found["RuntimeVersion"], "v"), err
}

// hasSysResource reports whether processes of this machine may lower their oom_score_adj. In many virtual machines and
// containers they may not.
func hasSysResource() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// runtimeFiles maps the templates of the runtime's configuration to files in the node's directory.
func (n *Node) runtimeFiles() map[string]string {
	if n.tb.opts.crio() {
		return crioFiles()
	}
	files := map[string]string{"containerd.toml": "containerd.toml"}
	if n.tb.debianRuntime {
		files = map[string]string{"containerd-1.6.toml": "containerd.toml"}
	}
	if n.tb.bins.crun != "" {
		files[ociScript] = ociScript
	}
	return files
}

// ociScript is the script through which a runtime calls the OCI runtime, if that needs other configurations.
const ociScript = "oci-runtime.sh"

// binaryName returns what the node's containerd calls as the OCI runtime.
func binaryName(n *Node) string {
	if n.tb.bins.crun != "" {
		return filepath.Join(n.dir, ociScript)
	}
	return n.tb.bins.ociRuntime()
}

func (n *Node) runtimeCommand() []string {
	if n.tb.opts.crio() {
		return n.crioCommand()
	}
	return []string{filepath.Join(n.tb.bins.containerd, "containerd"), "--config", filepath.Join(n.dir, "containerd.toml")}
}

func (n *Node) runtimeRole() string { return n.role(runtimeRole(n.tb.opts.Runtime)) }

// StartRuntime starts the node's container runtime and waits until its CRI answers.
func (n *Node) StartRuntime(ctx context.Context) error {
	err := n.tb.launch(n.runtimeRole(), launch{
		netns: n.Netns,
		mntns: n.mountNS(),
		dir:   n.dir,
		env:   n.tb.Env(), // containerd finds its shim in PATH
		argv:  n.runtimeCommand(),
	})
	if err != nil {
		return err
	}
	client, closeConn, err := n.CRI()
	if err != nil {
		return err
	}
	defer closeConn()
	return n.tb.await(ctx, n.runtimeRole(), startLimit, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
		return err
	})
}

// CRI connects to the node's runtime. closeConn closes the connection.
func (n *Node) CRI() (client runtimeapi.RuntimeServiceClient, closeConn func() error, err error) {
	return dialCRI(n.RuntimeEndpoint)
}

func dialCRI(endpoint string) (client runtimeapi.RuntimeServiceClient, closeConn func() error, err error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return runtimeapi.NewRuntimeServiceClient(conn), conn.Close, nil
}

// RuntimePID returns the process ID of the node's runtime, or 0 if none runs.
func (n *Node) RuntimePID() int { return n.pid(runtimeRole(n.tb.opts.Runtime)) }

// RuntimeLog returns the path of the runtime's log.
func (n *Node) RuntimeLog() string { return n.tb.log(n.runtimeRole()) }

// StopRuntime stops the node's runtime with the signal. Its shims or monitors and its containers keep running.
func (n *Node) StopRuntime(sig unix.Signal) error {
	return n.tb.stopRole(n.runtimeRole(), sig, 20*time.Second)
}

func (n *Node) importImages(ctx context.Context, archives []string) error {
	for _, a := range archives {
		if err := n.ImportImage(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// ImportImage imports an image archive (OCI layout or docker, as tar) into the node's runtime.
func (n *Node) ImportImage(ctx context.Context, archive string) error {
	if slices.Contains(n.unpacked, filepath.Base(archive)) {
		return nil
	}
	if n.tb.opts.crio() {
		return n.pullFrom(ctx, archive)
	}
	_, err := n.ctrImages(ctx, "import", archive)
	return err
}

// ForgetNames removes the image names of all registries in a domain from the node's containerd. An image keeps its
// other names.
func (n *Node) ForgetNames(ctx context.Context, domain string) error {
	names, err := n.ctrImages(ctx, "list", "--quiet")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(names) {
		if host, _, _ := strings.Cut(name, "/"); !strings.HasSuffix(host, "."+domain) {
			continue
		}
		if _, err := n.ctrImages(ctx, "remove", name); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) ctrImages(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--address", n.socket(), "--namespace", "k8s.io", "images"}, args...)
	return run(ctx, filepath.Join(n.tb.bins.containerd, "ctr"), args...)
}

// Mirror configures a URL as the mirror of a registry in the node's runtime.
func (n *Node) Mirror(registry, url string) error {
	if n.tb.opts.crio() {
		return n.mirrorCRIO(registry, url)
	}
	dir := filepath.Join(n.dir, "certs.d", registry)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	hosts := fmt.Sprintf("server = %q\n\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", url, url)
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o644)
}
