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

// prepareCRIO builds CRI-O and the programs that it runs: conmon, which monitors a container, and pinns, which
// creates the namespaces of a pod.
func (tb *Testbed) prepareCRIO(ctx context.Context) (err error) {
	if !tb.cache.lookOnly {
		needs := []need{{pkg: "libglib2.0-0", file: "/usr/lib/*/libglib-2.0.so.0"}} // conmon needs it
		if err := installDebian(ctx, tb.opts.Progress, needs); err != nil {
			return err
		}
	}
	if tb.bins.crio, err = tb.cache.Programs(ctx, "crio"); err != nil {
		return err
	}
	if tb.bins.conmon, err = tb.cache.DebianFile(ctx, "conmon", "usr/bin/conmon"); err != nil {
		return err
	}
	return tb.cache.pinns(ctx, filepath.Join(tb.bins.crio, "pinns"))
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

func (r *Runtime) crioCommand() []string {
	return []string{
		filepath.Join(r.node.tb.bins.crio, "crio"),
		"--config=" + filepath.Join(r.node.dir, "crio.conf"),
		"--config-dir=" + r.CRIOConfDir(),
		"--registries-conf=" + filepath.Join(r.node.dir, "registries.conf"),
		"--registries-conf-dir=" + r.registriesDir(),
	}
}

// CRIOConfDir returns CRI-O's directory for drop-in configuration files. CRI-O reads it when it starts; tests may add
// files.
func (r *Runtime) CRIOConfDir() string { return filepath.Join(r.node.dir, "crio.conf.d") }

func (r *Runtime) registriesDir() string { return filepath.Join(r.node.dir, "registries.conf.d") }

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
	conn, err := grpc.NewClient(r.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	images := runtimeapi.NewImageServiceClient(conn)
	for _, ref := range references {
		if _, err := images.PullImage(ctx,
			&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			return fmt.Errorf("pull %s from %s: %w", ref, archive, err)
		}
	}
	return nil
}

// mirrorCRIO is Mirror for CRI-O, which reloads its registries on SIGHUP.
func (r *Runtime) mirrorCRIO(host, url string) error {
	if err := os.MkdirAll(r.registriesDir(), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(
		"[[registry]]\nprefix = %[1]q\nlocation = %[1]q\n[[registry.mirror]]\nlocation = %[2]q\ninsecure = true\n",
		host,
		strings.TrimPrefix(url, "http://"),
	)
	if err := os.WriteFile(filepath.Join(r.registriesDir(), host+".conf"), []byte(text), 0o644); err != nil {
		return err
	}
	p, err := r.node.tb.proc(r.role())
	if err != nil {
		return err
	}
	return p.Signal(unix.SIGHUP)
}
