package testbed

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// goModule is a Go module from which programs are built. modules/NAME/go.mod pins its version.
type goModule struct {
	path string
	// cached is the name of the module's directory in the cache, without the version. Empty means the name of the module.
	cached string
	// ldflags may contain %[1]s for the version, and %[2]s for its minor number.
	ldflags string
	cgo     bool
	tags    string
	// programs are package paths relative to the module, or full import paths in modules that it requires. The suffix
	// .test means the test binary of the package.
	programs []string
}

const versionPkg = "-X k8s.io/component-base/version."

func goModules() map[string]goModule {
	return map[string]goModule{
		"kubernetes":      kubernetesModule(),
		"kubernetes-1.36": kubernetesModule(),
		"containerd": {
			path:     "github.com/containerd/containerd/v2",
			ldflags:  "-X github.com/containerd/containerd/v2/version.Version=%[1]s",
			programs: []string{"cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"},
		},
		"crio": {
			path:     "github.com/cri-o/cri-o",
			cgo:      true,
			tags:     "apparmor containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs seccomp selinux",
			programs: []string{"cmd/crio"},
		},
		"runc": {path: "github.com/opencontainers/runc", cgo: true, tags: "seccomp", programs: []string{"."}},
		"cni": {
			path: "github.com/containernetworking/plugins",
			programs: []string{
				"plugins/main/bridge", "plugins/main/loopback", "plugins/main/macvlan", "plugins/ipam/host-local",
				"plugins/meta/portmap", "plugins/meta/firewall", "plugins/meta/bandwidth", "plugins/meta/tuning",
			},
		},
		"coredns": {
			path:     "github.com/coredns/coredns",
			programs: []string{"testbed.invalid/coredns", "testbed.invalid/coredns/cluster-dns"},
		},
		"kind":              {path: "sigs.k8s.io/kind", programs: []string{"."}},
		"etcd":              {path: "go.etcd.io/etcd/server/v3", programs: []string{"testbed.invalid/etcd"}},
		"flannel":           {path: "github.com/flannel-io/flannel", cgo: true, programs: []string{"."}},
		"external-attacher": {path: "github.com/kubernetes-csi/external-attacher/v4", programs: []string{"cmd/csi-attacher"}},
		"csi-sidecars": {
			path: "github.com/kubernetes-csi/external-provisioner/v6",
			programs: []string{
				"cmd/csi-provisioner", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
				"testbed.invalid/csi-sidecars/mock-driver", "testbed.invalid/csi-sidecars/registrar",
			},
		},
		"csi-test": {path: "github.com/kubernetes-csi/csi-test/v5", programs: []string{"cmd/csi-sanity"}},
		"suite": {
			path:    "k8s.io/kubernetes",
			ldflags: kubernetesVersion,
			programs: []string{"test/e2e" + testSuffix, "test/images/nonewprivs", "test/images/sample-device-plugin",
				"github.com/onsi/ginkgo/v2/ginkgo"},
		},
		"node-suite": {
			path:     "k8s.io/kubernetes",
			ldflags:  kubernetesVersion,
			programs: []string{"test/e2e_node" + testSuffix, "github.com/onsi/ginkgo/v2/ginkgo"},
		},
		"metrics-server":   {path: "sigs.k8s.io/metrics-server", programs: []string{"cmd/metrics-server"}},
		"sample-apiserver": {path: "k8s.io/sample-apiserver", programs: []string{"."}},
		"cri-tools":        {path: "sigs.k8s.io/cri-tools", programs: []string{"cmd/crictl", "cmd/critest"}},
	}
}

// kubernetesVersion tells programs of Kubernetes their version. Some specs of its suite ask which one they belong to.
const kubernetesVersion = versionPkg + "gitVersion=%[1]s " + versionPkg + "gitMajor=1 " +
	versionPkg + "gitMinor=%[2]s " + versionPkg + "gitTreeState=archive -X k8s.io/client-go/pkg/version.gitVersion=%[1]s"

// kubernetesModule is Kubernetes: the control plane, the kubelet and the tools. There is a module of it for each minor
// version that Options.Kubernetes accepts.
func kubernetesModule() goModule {
	return goModule{
		path:    "k8s.io/kubernetes",
		cached:  "kubernetes",
		ldflags: kubernetesVersion,
		programs: []string{
			"cmd/kube-apiserver", "cmd/kube-controller-manager", "cmd/kube-scheduler", "cmd/kubectl",
			"cmd/kubelet", "cmd/kube-proxy", "cmd/kubeadm", "test/images/agnhost",
		},
	}
}

// testSuffix ends the names of test binaries.
const testSuffix = ".test"

// pkg returns the import path of a program.
func (m goModule) pkg(program string) string {
	program = strings.TrimSuffix(program, testSuffix)
	if host, _, _ := strings.Cut(program, "/"); strings.Contains(host, ".") && program != "." {
		return program
	}
	return path.Join(m.path, program)
}

// name returns the file name of a program. The program "." has the name of the module.
func (m goModule) name(program string) string {
	if strings.HasSuffix(program, testSuffix) {
		return path.Base(program)
	}
	return path.Base(m.pkg(program))
}

// Cache is a directory of built programs and images. Entries have versions in their names and appear atomically, so
// that processes may share the directory. It may be deleted at any time; then the next use builds again.
type Cache struct {
	dir      string
	progress io.Writer
	// lookOnly makes a missing entry an error instead of building it.
	lookOnly bool
	// mirror has built entries. It is nil if the environment names none.
	mirror *mirror
	// used are the files and directories of files that were asked for and found, by their names below dir.
	used []string
}

// errNotBuilt says that an entry is missing and must not be built.
var errNotBuilt = errors.New("not built yet")

// lacks returns an error for a missing entry if lookOnly is set.
func (c *Cache) lacks(what string) error {
	if !c.lookOnly {
		return nil
	}
	return fmt.Errorf("find %s: %w; build it with: go run ./test/testbed/cmd/testbed build", what, errNotBuilt)
}

// OpenCache opens the cache at $NODELET_TESTBED_CACHE or in the user's cache directory. Long builds write messages to
// progress.
func OpenCache(progress io.Writer) (*Cache, error) {
	dir := os.Getenv(CacheEnv)
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find a cache directory: %w (set %s)", err, CacheEnv)
		}
		dir = filepath.Join(base, "nodelet-testbed")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &Cache{dir: dir, progress: progress, mirror: newMirror(progress)}, os.MkdirAll(dir, 0o755)
}

// Programs builds the missing programs of a module, and returns their directory. No names means all programs.
func (c *Cache) Programs(ctx context.Context, module string, programs ...string) (string, error) {
	m, ok := goModules()[module]
	if !ok {
		return "", fmt.Errorf("no module %q below test/testbed/modules", module)
	}
	src, err := moduleDir(module)
	if err != nil {
		return "", err
	}
	version, err := moduleVersion(module)
	if err != nil {
		return "", err
	}
	var wanted []string
	for _, p := range m.programs {
		if len(programs) == 0 || slices.Contains(programs, m.name(p)) {
			wanted = append(wanted, p)
		}
	}
	if len(programs) > 0 && len(wanted) != len(programs) {
		return "", fmt.Errorf("find the programs %v: module %s has only %v of them", programs, module, wanted)
	}
	dir := filepath.Join(c.dir, cmp.Or(m.cached, module)+"-"+version)
	if err := c.build(ctx, m, src, version, dir, wanted); err != nil {
		return "", err
	}
	for _, p := range wanted {
		c.used = append(c.used, filepath.Join(filepath.Base(dir), m.name(p)))
	}
	return dir, nil
}

// builtPrograms is the same as Programs for all programs of a module, but builds none.
func builtPrograms(ctx context.Context, c *Cache, module string) (string, error) {
	before := c.lookOnly
	c.lookOnly = true
	defer func() { c.lookOnly = before }()
	return c.Programs(ctx, module)
}

// Program builds one program if it is missing, and returns its path.
func (c *Cache) Program(ctx context.Context, module, program string) (string, error) {
	dir, err := c.Programs(ctx, module, program)
	return filepath.Join(dir, program), err
}

func (c *Cache) build(ctx context.Context, m goModule, src, version, dir string, programs []string) error {
	if len(m.missing(dir, programs)) == 0 {
		return nil
	}
	what := filepath.Base(dir)
	if c.mirror == nil {
		if err := c.lacks(what); err != nil {
			return err
		}
	}
	unlock, err := c.lock(ctx, what)
	if err != nil {
		return err
	}
	defer unlock()
	for _, p := range m.missing(dir, programs) {
		if _, err := c.mirror.fetch(ctx, c.dir, filepath.Join(what, m.name(p))); err != nil {
			return err
		}
	}
	programs = m.missing(dir, programs)
	if len(programs) == 0 {
		return nil
	}
	if err := c.lacks(what); err != nil {
		return err
	}
	if m.cgo {
		if err := installDebian(ctx, c.progress, cgoNeeds()); err != nil {
			return err
		}
	}
	temp, err := c.workDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	ldflags := "-s -w"
	if m.ldflags != "" {
		ldflags += " " + fmt.Sprintf(m.ldflags, version, minor(version))
	}
	if err := c.compile(ctx, m, what, src, temp, []string{"-v", "-mod=readonly", "-buildvcs=false", "-trimpath",
		"-tags=" + m.tags, "-ldflags=" + ldflags}, programs); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		if err := os.Rename(filepath.Join(temp, m.name(p)), filepath.Join(dir, m.name(p))); err != nil {
			return err
		}
	}
	return nil
}

// compile builds programs into a directory: all main packages with one command, test binaries one by one and without
// "go vet", which takes minutes.
func (c *Cache) compile(ctx context.Context, m goModule, what, src, into string, flags, programs []string) error {
	args := slices.Concat([]string{"build"}, flags, []string{"-o", into + "/"})
	mains := len(args)
	for _, p := range programs {
		if !strings.HasSuffix(p, testSuffix) {
			args = append(args, m.pkg(p))
			continue
		}
		target := []string{"-o", filepath.Join(into, m.name(p)), m.pkg(p)}
		test := slices.Concat([]string{"test", "-c", "-vet=off"}, flags, target)
		if err := c.goBuild(ctx, what, src, m.cgo, test); err != nil {
			return err
		}
	}
	if len(args) == mains {
		return nil
	}
	return c.goBuild(ctx, what, src, m.cgo, args)
}

func (m goModule) missing(dir string, programs []string) []string {
	return slices.DeleteFunc(slices.Clone(programs), func(p string) bool {
		info, err := os.Stat(filepath.Join(dir, m.name(p)))
		return err == nil && info.Size() > 0 // a power cut can leave an empty file
	})
}

// goBuild runs the go command in src. If a module cannot be downloaded, it tries again, for a registry may be away for
// a moment.
func (c *Cache) goBuild(ctx context.Context, what, src string, cgo bool, args []string) error {
	return retryDownload(ctx, c.progress, what, func() error { return c.goOnce(ctx, what, src, cgo, args) })
}

// retryDownload calls f until it succeeds or fails for another reason than a download, but not for ever.
func retryDownload(ctx context.Context, progress io.Writer, what string, f func() error) error {
	for wait := 5 * time.Second; ; wait *= 4 {
		err := f()
		if err == nil || wait > 2*time.Minute || !isDownload(err) {
			return err
		}
		fmt.Fprintf(progress, "%s: cannot download, trying again in %s: %v\n", what, wait, err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// isDownload reports whether an error of the go command or of apt-get may be one of the network: it names an address,
// and the answer is not that there is nothing.
func isDownload(err error) bool {
	text := err.Error()
	return strings.Contains(text, "://") && !strings.Contains(text, "404 Not Found") && !strings.Contains(text, "410 Gone")
}

// goOnce runs the go command in src and reports its progress: "go build -v" prints each package that it compiles.
func (c *Cache) goOnce(ctx context.Context, what, src string, cgo bool, args []string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	total := stalePackages(cmd, args)
	began := time.Now()
	fmt.Fprintf(c.progress, "%s: building (%d packages to compile; minutes, the first time)\n", what, total)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", what, err)
	}
	var packages atomic.Int64
	stop := c.report(what, began, &packages, total)
	var last []string // the last lines of its output
	for lines := bufio.NewScanner(stderr); lines.Scan(); packages.Add(1) {
		last = append(last[max(0, len(last)-30):], lines.Text())
	}
	err = cmd.Wait()
	stop()
	if err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", what, src, err, strings.Join(last, "\n"))
	}
	fmt.Fprintf(c.progress, "%s: built in %s\n", what, time.Since(began).Round(time.Second))
	return nil
}

// stalePackages returns how many packages a "go build" still has to compile, or 0 if that cannot be found out.
func stalePackages(build *exec.Cmd, args []string) int {
	list := []string{"list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}
	for i := 1; i < len(args); i++ {
		switch args[i] {
		case "-o":
			i++
		case "-v", "-c", "-vet=off":
		default:
			list = append(list, args[i])
		}
	}
	cmd := exec.Command("go", list...)
	cmd.Dir, cmd.Env = build.Dir, build.Env
	out, err := cmd.Output()
	if err != nil {
		return 0
	}
	return len(strings.Fields(string(out)))
}

// remaining estimates how long the rest of a work takes that goes on as before, to the minute.
func remaining(done, total int64, spent time.Duration) string {
	if done == 0 || total <= done {
		return "some minutes left"
	}
	left := spent * time.Duration(total-done) / time.Duration(done)
	return fmt.Sprintf("about %d min left", int(left.Minutes())+1)
}

// report prints a progress line every 15 seconds until stop is called.
func (c *Cache) report(what string, began time.Time, packages *atomic.Int64, total int) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(15 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				spent, done := time.Since(began), packages.Load()
				fmt.Fprintf(c.progress, "%s: %d of %d packages compiled in %s, %s\n",
					what, done, total, spent.Round(time.Second), remaining(done, int64(total), spent))
			}
		}
	}()
	return func() { close(done); <-ended }
}

// minor returns the minor number of a semantic version, "37" of "v1.37.2".
func minor(version string) string {
	_, rest, _ := strings.Cut(version, ".")
	number, _, _ := strings.Cut(rest, ".")
	return number
}

// moduleVersion returns the version of a module's programs.
func moduleVersion(name string) (string, error) {
	src, err := moduleDir(name)
	if err != nil {
		return "", err
	}
	return pinnedVersion(filepath.Join(src, "go.mod"), goModules()[name].path)
}

// ModuleSource returns the directory of a module's source code, which has files that are no programs, too. It downloads
// the module if the machine does not have it yet.
func (c *Cache) ModuleSource(ctx context.Context, module string) (string, error) {
	src, err := moduleDir(module)
	if err != nil {
		return "", err
	}
	out, err := run(ctx, "go", "-C", src, "mod", "download", "-json", goModules()[module].path)
	if err != nil {
		return "", err
	}
	var m struct{ Dir string }
	if err := json.Unmarshal([]byte(out), &m); err != nil || m.Dir == "" {
		return "", fmt.Errorf("download module %s: the go command answered %q, without a directory", module, out)
	}
	return m.Dir, nil
}

// moduleDir returns test/testbed/modules/NAME.
func moduleDir(name string) (string, error) {
	own, err := ownSource()
	return filepath.Join(own, "modules", name), err
}

// ownSource finds the directory of this package: that of this file, or with the go command, which takes seconds in a
// slow machine, if the program was built with -trimpath.
var ownSource = sync.OnceValues(func() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) && isDir(filepath.Dir(file)) {
		return filepath.Dir(file), nil
	}
	own, err := run(context.Background(), "go", "list", "-f", "{{.Dir}}", "github.com/nodelet/nodelet/test/testbed")
	if err != nil {
		return "", fmt.Errorf("find the testbed's sources (run it inside the nodelet source tree): %w", err)
	}
	return strings.TrimSpace(own), nil
})

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// pinnedVersion reads the version of a module that a go.mod requires.
func pinnedVersion(goMod, module string) (string, error) {
	b, err := os.ReadFile(goMod)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(b)
	if m == nil {
		return "", errors.New(goMod + " does not require " + module)
	}
	return string(m[1]), nil
}
