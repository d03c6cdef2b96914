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

// Runtime is the container runtime of a node.
type Runtime struct {
	// Endpoint is the CRI socket as unix:///path.
	Endpoint string
	// Name is the prefix of container IDs: containerd or cri-o.
	Name string

	node *Node
	// unpacked are the names of the archives whose images it has taken from UnpackedEnv.
	unpacked []string
}

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
		tb.bins.crio, tb.bins.conmon, err = tb.cache.crio(ctx)
		return err
	}
	tb.bins.containerd, err = tb.cache.Programs(ctx, "containerd")
	return err
}

// ociRuntime returns the path of the OCI runtime.
func (p programs) ociRuntime() string { return cmp.Or(p.crun, filepath.Join(p.runc, ociRunc)) }

// OCIVersion returns the name and version of the OCI runtime, as in "runc 1.5.2".
func (r *Runtime) OCIVersion(ctx context.Context) (string, error) {
	out, err := run(ctx, r.node.tb.bins.ociRuntime(), "--version")
	line, _, _ := strings.Cut(out, "\n")
	return strings.Replace(line, " version ", " ", 1), err
}

// Version returns the name and version of the container runtime, for example "containerd 2.4.2".
func (r *Runtime) Version(ctx context.Context) (string, error) {
	out, err := r.Crictl(ctx, "version")
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

// files maps the templates of the runtime's configuration to files in the node's directory.
func (r *Runtime) files() map[string]string {
	if r.node.tb.opts.crio() {
		return crioFiles()
	}
	files := map[string]string{"containerd.toml": "containerd.toml"}
	if r.node.tb.debianRuntime {
		files = map[string]string{"containerd-1.6.toml": "containerd.toml"}
	}
	if r.node.tb.bins.crun != "" {
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

func (r *Runtime) command() []string {
	if r.node.tb.opts.crio() {
		return crioCommand(r.node.tb.bins.crio, r.node.dir)
	}
	config := filepath.Join(r.node.dir, "containerd.toml")
	return []string{filepath.Join(r.node.tb.bins.containerd, "containerd"), "--config", config}
}

func (r *Runtime) role() string { return r.node.role(runtimeRole(r.node.tb.opts.Runtime)) }

// Start starts the node's container runtime and waits until its CRI answers.
func (r *Runtime) Start(ctx context.Context) error {
	err := r.node.tb.launch(r.role(), launch{
		netns: r.node.Netns,
		mntns: r.node.mountNS(),
		dir:   r.node.dir,
		env:   r.node.tb.Env(), // containerd finds its shim in PATH
		argv:  r.command(),
	})
	if err != nil {
		return err
	}
	client, closeConn, err := r.CRI()
	if err != nil {
		return err
	}
	defer closeConn()
	return r.node.tb.await(ctx, r.role(), startLimit, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
		return err
	})
}

func (r *Runtime) socket() string { return strings.TrimPrefix(r.Endpoint, "unix://") }

// Crictl runs crictl against the node's runtime and returns its standard output.
func (r *Runtime) Crictl(ctx context.Context, args ...string) (string, error) {
	all := append([]string{"--runtime-endpoint", r.Endpoint, "--timeout", "30s"}, args...)
	return run(ctx, filepath.Join(r.node.tb.bins.cri, "crictl"), all...)
}

// CRI connects to the node's runtime. closeConn closes the connection.
func (r *Runtime) CRI() (client runtimeapi.RuntimeServiceClient, closeConn func() error, err error) {
	return dialCRI(r.Endpoint)
}

func dialCRI(endpoint string) (client runtimeapi.RuntimeServiceClient, closeConn func() error, err error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return runtimeapi.NewRuntimeServiceClient(conn), conn.Close, nil
}

// PID returns the process ID of the runtime, or 0 if none runs.
func (r *Runtime) PID() int { return r.node.pid(runtimeRole(r.node.tb.opts.Runtime)) }

// Log returns the path of the runtime's log.
func (r *Runtime) Log() string { return r.node.tb.log(r.role()) }

// Stop stops the node's runtime with the signal. Its shims or monitors and its containers keep running.
func (r *Runtime) Stop(sig unix.Signal) error {
	return r.node.tb.stopRole(r.role(), sig, 20*time.Second)
}

func (r *Runtime) importImages(ctx context.Context, archives []string) error {
	for _, a := range archives {
		if err := r.ImportImage(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// ImportImage imports an image archive (OCI layout or docker, as tar) into the node's runtime.
func (r *Runtime) ImportImage(ctx context.Context, archive string) error {
	if slices.Contains(r.unpacked, filepath.Base(archive)) {
		return nil
	}
	if r.node.tb.opts.crio() {
		return r.pullFrom(ctx, archive)
	}
	_, err := r.ctrImages(ctx, "import", archive)
	return err
}

// ForgetNames removes the image names of all registries in a domain from the node's containerd. An image keeps its
// other names.
func (r *Runtime) ForgetNames(ctx context.Context, domain string) error {
	names, err := r.ctrImages(ctx, "list", "--quiet")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(names) {
		if host, _, _ := strings.Cut(name, "/"); !strings.HasSuffix(host, "."+domain) {
			continue
		}
		if _, err := r.ctrImages(ctx, "remove", name); err != nil {
			return err
		}
	}
	return nil
}

// Push pushes an image of the node's containerd to a registry without TLS, host:port, under its own path.
func (r *Runtime) Push(ctx context.Context, image, registry, user, password string) error {
	_, path, _ := strings.Cut(image, "/")
	_, err := r.ctrImages(ctx, "push", "--local", "--plain-http", "--user", user+":"+password, registry+"/"+path, image)
	return err
}

func (r *Runtime) ctrImages(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--address", r.socket(), "--namespace", "k8s.io", "images"}, args...)
	return run(ctx, filepath.Join(r.node.tb.bins.containerd, "ctr"), args...)
}

// Mirror configures a URL as the mirror of a registry in the node's runtime.
func (r *Runtime) Mirror(registry, url string) error {
	if r.node.tb.opts.crio() {
		return r.mirrorCRIO(registry, url)
	}
	dir := filepath.Join(r.node.dir, "certs.d", registry)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	hosts := fmt.Sprintf("server = %q\n\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", url, url)
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o644)
}
