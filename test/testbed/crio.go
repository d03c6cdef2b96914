package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/registry"
)

// registryPort is the port of the registry from which CRI-O pulls images.
const registryPort = "5000"

// crio builds CRI-O and the programs that it runs: conmon, which monitors a container, and pinns, which creates the
// namespaces of a pod. It returns the directory of CRI-O and pinns, and the path of conmon.
func (c *Cache) crio(ctx context.Context) (crio, conmon string, err error) {
	if !c.lookOnly {
		needs := []need{{pkg: "libglib2.0-0", file: "/usr/lib/*/libglib-2.0.so.0"}} // conmon needs it
		if err := installDebian(ctx, c.progress, needs); err != nil {
			return "", "", err
		}
	}
	if crio, err = c.Programs(ctx, roleCRIO); err != nil {
		return "", "", err
	}
	if conmon, err = c.DebianFile(ctx, "conmon", "usr/bin/conmon"); err != nil {
		return "", "", err
	}
	return crio, conmon, c.pinns(ctx, filepath.Join(crio, "pinns"))
}

// pinns builds the program pinns from CRI-O's sources.
func (c *Cache) pinns(ctx context.Context, program string) error {
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	if err := c.lacks("pinns"); err != nil {
		return err
	}
	source, err := c.ModuleSource(ctx, "crio")
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(source, "pinns/src/*.c"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("find the sources of pinns: none in %s", source)
	}
	_, err = run(ctx, "gcc", append([]string{"-Os", "-static", "-s", "-o", program + ".new"}, files...)...)
	if err != nil {
		return err
	}
	return os.Rename(program+".new", program)
}

func crioFiles() map[string]string {
	return map[string]string{
		"crio.conf":       "crio.conf",
		"policy.json":     "policy.json",
		"registries.conf": "registries.conf",
		ociScript:         ociScript,
	}
}

// crioCommand returns the command that runs CRI-O with the configuration in a directory.
func crioCommand(crio, dir string) []string {
	return []string{
		filepath.Join(crio, "crio"),
		"--config=" + filepath.Join(dir, "crio.conf"),
		"--config-dir=" + crioConfDir(dir),
		"--registries-conf=" + filepath.Join(dir, "registries.conf"),
		"--registries-conf-dir=" + registriesDir(dir),
	}
}

func crioConfDir(dir string) string { return filepath.Join(dir, "crio.conf.d") }

func registriesDir(dir string) string { return filepath.Join(dir, "registries.conf.d") }

// CRIOConfDir returns CRI-O's directory for drop-in configuration files. CRI-O reads it when it starts; tests may add
// files.
func (r *Runtime) CRIOConfDir() string { return crioConfDir(r.node.dir) }

func (tb *Testbed) registryAddress() string { return net.JoinHostPort(tb.HostIP(), registryPort) }

// ServeImages serves the images of archives to nodes with CRI-O until stop is called. It is the mirror of
// registry.k8s.io and docker.io on these nodes.
func (tb *Testbed) ServeImages(archives ...string) (references []string, stop func() error, err error) {
	r, err := registry.Open(archives)
	if err != nil {
		return nil, nil, err
	}
	_, end, err := r.Serve(tb.registryAddress(), "")
	if err != nil {
		return nil, nil, fmt.Errorf("serve images: %w", errors.Join(err, r.Close()))
	}
	return r.References(), func() error { return errors.Join(end(), r.Close()) }, nil
}

// pullFrom lets CRI-O pull all images of an archive, because CRI-O cannot import archives.
func (r *Runtime) pullFrom(ctx context.Context, archive string) (err error) {
	r.node.tb.serving.Lock() // all nodes use one address
	defer r.node.tb.serving.Unlock()
	references, stop, err := r.node.tb.ServeImages(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := pullAll(ctx, r.Endpoint, references); err != nil {
		return fmt.Errorf("pull the images of %s: %w", archive, err)
	}
	return nil
}

// pullAll lets the runtime at an endpoint pull images. It waits until the runtime answers.
func pullAll(ctx context.Context, endpoint string, references []string) error {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	images := runtimeapi.NewImageServiceClient(conn)
	for _, ref := range references {
		_, err := images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}},
			grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("pull %s: %w", ref, err)
		}
	}
	return nil
}

// unpackCRIO lets a CRI-O that runs for this only pull the images of archives, and leaves its root directory below dir.
func (c *Cache) unpackCRIO(ctx context.Context, archives []string, dir string) (err error) {
	crio, conmon, err := c.crio(ctx)
	if err != nil {
		return err
	}
	runc, err := c.Programs(ctx, ociRunc)
	if err != nil {
		return err
	}
	run, err := os.MkdirTemp(dir, "crio-") // on the file system of dir, for its root directory is moved
	if err != nil {
		return err
	}
	defer os.RemoveAll(run)
	r, err := registry.Open(archives) // of images with one name the last counts, as with ImportImage
	if err != nil {
		return err
	}
	defer r.Close()
	url, stop, err := r.Serve("127.0.0.1:0", "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	socket := filepath.Join(run, "crio.sock")
	for name, file := range crioFiles() {
		b, err := render(name, map[string]string{
			"Dir": run, "Socket": socket, "PodLogs": filepath.Join(run, "logs"), "ShimSockets": filepath.Join(run, "shims"),
			"CRIO": crio, "Conmon": conmon, "OCIRuntime": filepath.Join(runc, ociRunc), "CNIBin": filepath.Join(run, "cni"),
			"Registry": strings.TrimPrefix(url, "http://"), "Driver": DriverCgroupfs, "RestrictOOM": "false", "Crun": "false",
		})
		if err == nil {
			err = os.WriteFile(filepath.Join(run, file), b, mode(file))
		}
		if err != nil {
			return err
		}
	}
	// CRI-O mounts its root directory; the mounts end with it.
	argv := append([]string{"unshare", "--mount", "--propagation", "private"}, crioCommand(crio, run)...)
	err = whileRuns(ctx, argv, func(ctx context.Context) error { return pullAll(ctx, "unix://"+socket, r.References()) })
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(run, roleCRIO), filepath.Join(dir, roleCRIO))
}

// mirrorCRIO is Mirror for CRI-O, which reloads its registries on SIGHUP.
func (r *Runtime) mirrorCRIO(host, url string) error {
	if err := os.MkdirAll(registriesDir(r.node.dir), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(
		"[[registry]]\nprefix = %[1]q\nlocation = %[1]q\n[[registry.mirror]]\nlocation = %[2]q\ninsecure = true\n",
		host,
		strings.TrimPrefix(url, "http://"),
	)
	if err := os.WriteFile(filepath.Join(registriesDir(r.node.dir), host+".conf"), []byte(text), 0o644); err != nil {
		return err
	}
	p, err := r.node.tb.proc(r.role())
	if err != nil {
		return err
	}
	return p.Signal(unix.SIGHUP)
}
