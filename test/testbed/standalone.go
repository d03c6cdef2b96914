package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// debianRuntime are the programs of a node from Debian's packages. They are unpacked, not installed, so no service
// starts.
var debianRuntime = []struct{ pkg, file string }{
	{"containerd", "usr/bin/containerd"},
	{"runc", "usr/sbin/runc"},
	{"containernetworking-plugins", "usr/lib/cni/bridge"},
}

// Standalone starts a node without a control plane: a container runtime and nodelet, with a static pod that answers
// HTTP requests at the URL that it returns. It builds no program: the runtime is that of the cache if it has one, and
// otherwise that of Debian's packages. On an error it takes everything down again.
func Standalone(ctx context.Context, o Options) (tb *Testbed, url string, err error) {
	if os.Geteuid() != 0 {
		return nil, "", errors.New("start a node: not root; run it as root, because it creates namespaces and cgroups")
	}
	o.Agent = Nodelet
	o.Network, o.Nodes = "agent", 1
	o.Shape = cmp.Or(o.Shape, StandaloneShape)
	if o, err = o.withDefaults(); err != nil {
		return nil, "", fmt.Errorf("start a node: %w", err)
	}
	if tb, err = newTestbed(o); err != nil {
		return nil, "", err
	}
	s := &standalone{tb, time.Now()}
	s.say("1/5 containerd, runc and CNI plugins: from the cache, or from Debian's packages (40 MB)")
	if _, err := s.prepare(ctx); err != nil {
		return nil, "", err
	}
	s.say("2/5 images: pause and busybox")
	images, err := leanImages(ctx, tb.cache)
	if err != nil {
		return nil, "", err
	}
	if err := tb.claim(); err != nil {
		return nil, "", err
	}
	if url, err = s.start(ctx, images); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, "", errors.Join(fmt.Errorf("start node %q: %w", o.Name, err), tb.Down(clean))
	}
	return tb, url, nil
}

// standalone is a testbed without a control plane while it starts.
type standalone struct {
	*Testbed
	began time.Time
}

// say prints what is done with the time since the start.
func (tb *standalone) say(format string, args ...any) {
	fmt.Fprintf(tb.opts.Progress, "%5.1f s  %s\n", time.Since(tb.began).Seconds(), fmt.Sprintf(format, args...))
}

// findNodePrograms finds the programs of a node without building any.
func findNodePrograms(ctx context.Context, tb *Testbed) error {
	into := []*string{&tb.bins.containerd, &tb.bins.runc, &tb.bins.cni}
	for i, module := range []string{"containerd", "runc", "cni"} {
		if tb.opts.Shape != DebianShape {
			dir, err := builtPrograms(ctx, tb.cache, module)
			if err == nil {
				*into[i] = dir
				continue
			}
			if !errors.Is(err, errNotBuilt) {
				return err
			}
		}
		d := debianRuntime[i]
		file, err := tb.cache.DebianFile(ctx, d.pkg, d.file)
		if err != nil {
			return err
		}
		*into[i] = filepath.Dir(file)
		tb.debianRuntime = tb.debianRuntime || module == "containerd"
	}
	return nil
}

// leanImages returns the archives of the images that need no compiler: pause and busybox.
func leanImages(ctx context.Context, c *Cache) ([]string, error) {
	pause := func(ctx context.Context) (image, error) { return sleepingPauseImage(ctx, c) }
	return c.archives(ctx, []recipe{{"standalone-pause", pause}, {"busybox-1.37", imageBuilder{c}.busyboxImage}})
}

// sleepingPauseImage is a pause image that needs no compiler.
func sleepingPauseImage(ctx context.Context, c *Cache) (image, error) {
	files, err := imageBuilder{c}.busyboxRoot(ctx)
	return image{
		refs:       []string{PauseImage, "registry.k8s.io/pause:3.6"}, // the second is the default of containerd 1.6
		files:      files,
		entrypoint: []string{"/bin/sleep", strconv.Itoa(1<<31 - 1)},
		env:        []string{imagePath},
	}, err
}

// webPod answers each request with a line.
const webPod = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: ` + BusyboxImage + `
    command: [sh, -c, "echo hello from a pod of nodelet > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
    ports: [{containerPort: 8080, hostPort: 8080}]
`

// start starts the runtime and the agent, and waits until the pod answers.
func (tb *standalone) start(ctx context.Context, images []string) (url string, err error) {
	x, err := tb.setupNetwork(ctx)
	if err != nil {
		return "", err
	}
	tb.setSubnet(x)
	if err := tb.updateState(func(s *state) { s.Subnet = x }); err != nil {
		return "", err
	}
	if err := tb.writePKI(); err != nil {
		return "", fmt.Errorf("write certificates: %w", err)
	}
	n := tb.Nodes[0]
	if err := n.setup(ctx); err != nil {
		return "", err
	}
	tb.say("3/5 start containerd and import the images")
	if err := n.Runtime.Start(ctx); err != nil {
		return "", err
	}
	if err := n.Runtime.importImages(ctx, images); err != nil {
		return "", err
	}
	tb.say("4/5 start nodelet with the manifests of %s", n.ManifestDir)
	if err := os.WriteFile(filepath.Join(n.ManifestDir, "web.yaml"), []byte(webPod), 0o644); err != nil {
		return "", err
	}
	if err := n.StartAgent(ctx, Nodelet); err != nil {
		return "", err
	}
	url = "http://" + n.IP + ":8080/"
	tb.say("5/5 wait for the pod at %s", url)
	client := &http.Client{Timeout: 2 * time.Second}
	var answer []byte
	err = tb.await(ctx, n.role(roleAgent), startLimit, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err = io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
		return err
	})
	if err == nil {
		tb.say("the pod answers: %s", answer)
	}
	return url, err
}
