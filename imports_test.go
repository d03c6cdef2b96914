// Package nodelet_test guards the code base itself: which package may import which, how the code is written, and what
// the documents promise.
package nodelet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/nodelet/nodelet/"

// pure packages decide and build values. They import API types and small helpers, and nothing that does I/O.
var pure = []string{
	"agent/admission", "agent/placement/cpu", "agent/placement/memory", "agent/placement/numa", "agent/placement/policy",
	"agent/placement/state", "agent/plan", "agent/podstate", "agent/podstatus", "agent/spec", "agent/eviction/policy",
	"host/cgroups/cpu", "host/cgroups/names", "host/topology", "kube/pluginname", "kube/pod", "kube/poddir",
}

var pureMayImport = []string{
	"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/component-helpers/", "k8s.io/cri-api/", "k8s.io/utils/",
	"google.golang.org/protobuf/", "github.com/go-logr/logr", module + "agent/podstate", module + "agent/podstatus",
	module + "host/cgroups/cpu", module + "host/cgroups/names", module + "host/topology", module + "kube/pluginname",
	module + "kube/pod", module + "kube/poddir", module + "agent/placement/",
}

// pureMustNot are the packages of the standard library with which a pure package could do I/O.
var pureMustNot = []string{
	"os", "net", "net/http", "os/exec", "syscall", "log", "log/slog", "context", "io/ioutil", "math/rand",
	"math/rand/v2", "crypto/rand",
}

// mayImport has a line for each directory: its name, then the packages of this module, with those below them, that the
// packages in and below it may import; a long list has several lines. The longest matching directory counts. A package
// may always import those below itself.
const mayImport = `
cmd: agent cni config cri csi host internal kube metrics plugins probes systemd volumes
cmd/nodelet/command: cmd/nodelet/command agent cni config cri host/kernel host/machine internal/suggest kube/certs
cmd/nodelet/command: kube/node kube/pod kube/pods kube/server systemd
agent: cri host/beneath host/machine internal/backoff internal/latest internal/loglevel internal/periodic kube/pod
agent: kube/pods internal/trace
agent/admission: agent/podstate kube/pod
agent/allocation: agent/placement/state agent/podstate agent/spec kube/pod
agent/plan: agent/podstate agent/podstatus kube/pod
agent/execute: agent/podstate agent/spec cri host/beneath host/boundedfile host/mounts host/userns kube/pod
agent/execute: internal/keylock internal/limiter internal/trace probes volumes
agent/instruments: agent kube/pluginname kube/pod metrics volumes
agent/podcgroups: agent/podstate agent/spec host/cgroups kube/pod metrics/usage
agent/podprobes: agent/plan agent/podstate agent/spec probes
agent/podstate: kube/pod
agent/podstatus: agent/podstate kube/pod
agent/spec: agent/podstate host/cgroups/cpu host/cgroups/names kube/pod kube/poddir
agent/placement: agent/placement agent/podstate config host/atomicfile host/boundedfile host/topology
agent/placement: internal/latest kube/pod plugins/devices
agent/podapi: agent config cri internal/listener kube/pod kube/server
agent/nodefacts: agent/spec config host/kernel kube/pod kube/poddir
agent/allocatable: config host/cgroups host/machine host/topology internal/backoff internal/periodic kube/pod
agent/eviction: agent config host/cgroups host/pressure kube/pod metrics/usage internal/latest
agent/eviction: internal/periodic
agent/eviction/policy: kube/pod
agent/shutdown: agent agent/podstate config host/atomicfile kube/pod internal/backoff
cni: host/inotify host/atomicfile host/boundedfile host/iptables host/machine host/program
cni: internal/backoff internal/latest internal/listener internal/periodic
cni/manager: cni config internal/backoff internal/latest internal/periodic kube/client
cri: kube/pod internal/backoff internal/limiter internal/trace
cri/images: config cri host/atomicfile host/boundedfile host/machine host/program internal/keylock internal/backoff
cri/images: internal/flight internal/limiter internal/strict kube/pod
cri/logs: config host/beneath host/inotify host/noatime internal/backoff internal/latest internal/periodic
cri/logs: kube/poddir
cri/monitor: cri internal/backoff internal/latest internal/periodic
csi: plugins kube/pluginname kube/poddir host/atomicfile host/beneath host/machine host/mounts
csi: internal/backoff internal/keylock internal/waiting internal/latest
kube: kube/client kube/watch kube/pluginname kube/pod internal/backoff internal/latest
kube: internal/limiter internal/periodic internal/waiting
kube/certs: config kube/client kube/watch host/atomicfile host/inotify internal/backoff internal/latest
kube/certs: internal/periodic
kube/objects: config kube/client kube/watch kube/pod internal/backoff internal/keylock internal/latest
kube/objects: internal/limiter
kube/node: config host/machine host/topology kube/client kube/pod kube/poddir kube/watch
kube/node: internal/backoff internal/latest internal/periodic
kube/pod: host/cgroups/names
kube/poddir: kube/pluginname
kube/pods: config kube/client kube/watch kube/pod host/inotify host/boundedfile
kube/pods: internal/backoff internal/latest internal/periodic internal/strict
kube/server: config kube/client internal/backoff internal/latest internal/listener
kube/server/endpoints: config internal/listener internal/loglevel internal/release kube/server
host/inotify: internal/backoff internal/periodic
host/iptables: host/program internal/backoff internal/periodic
host/oom: internal/backoff
host/pressure: host/machine host/mounts
host/self: host/filelock internal/backoff internal/periodic
metrics: host/machine
metrics/usage: config metrics kube/pod host/beneath host/machine host/mounts host/topology internal/backoff
metrics/usage: kube/pluginname kube/poddir
metrics/exporter: cni config kube/objects kube/server metrics probes
plugins: host/inotify host/kernel internal/backoff internal/latest
plugins/devices: plugins host/atomicfile host/boundedfile internal/keylock internal/listener internal/waiting
plugins/devices: kube/pod
plugins/dra: plugins host/atomicfile host/boundedfile internal/backoff internal/keylock internal/waiting
internal/listener: internal/backoff
probes: internal/backoff internal/keylock internal/release internal/latest internal/limiter kube/pod
config: agent/eviction/policy host/topology internal/release internal/strict internal/suggest
internal/strict: internal/suggest
systemd: host/atomicfile internal/backoff
volumes: csi host/mounts kube/pluginname kube/pod kube/poddir kube/storage metrics/usage plugins internal/keylock
volumes/block: host/filelock host/program
volumes/iscsi: volumes/block internal/keylock host/atomicfile host/mounts
volumes/podfs: volumes/block kube/pluginname kube/pod host/atomicfile host/beneath host/boundedfile host/mounts
volumes/podfs: host/noatime internal/keylock kube/poddir
test: .
`

// forbidden are modules that the product must not import, because of their weight or nature.
var forbidden = []string{
	"k8s.io/kubernetes", "k8s.io/component-base", "k8s.io/client-go/kubernetes", "k8s.io/client-go/informers",
	"k8s.io/cri-client", "github.com/google/cadvisor", "github.com/spf13/cobra",
}

// source is a Go file.
type source struct {
	dir, file string
	syntax    *ast.File
	text      string
}

// product returns the Go files that are neither tests nor in the modules with which the testbed builds programs.
func product(t *testing.T) []source {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(everyGoFile(t)), func(s source) bool {
		return strings.HasSuffix(s.file, "_test.go") || within(s.dir, "test/testbed/modules")
	})
}

// everyGoFile returns all Go files of the repository.
func everyGoFile(t *testing.T) []source {
	t.Helper()
	all, err := parseOnce()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("got %d source files; is the test run from the root of the module?", len(all))
	}
	return all
}

var parseOnce = sync.OnceValues(func() (all []source, err error) {
	fset := token.NewFileSet()
	err = filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (p != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := path.Dir(p)
		all = append(all, source{dir: dir, file: p, syntax: f, text: string(text)})
		return nil
	})
	return all, err
})

func imports(s source) []string {
	var all []string
	for _, i := range s.syntax.Imports {
		all = append(all, strings.Trim(i.Path.Value, `"`))
	}
	return all
}

// at returns the position of a node, as in cmd/nodelet/main.go:12.
func (s source) at(n ast.Node) string {
	start := int(n.Pos() - s.syntax.FileStart)
	return s.file + ":" + strconv.Itoa(1+strings.Count(s.text[:start], "\n"))
}

func (s source) isTest() bool { return within(s.dir, "test") }

// within reports whether dir is parent or lies below it.
func within(dir, parent string) bool {
	return parent == "." || dir == parent || strings.HasPrefix(dir, parent+"/")
}

// TestImportDirection holds the code to mayImport, pure and forbidden.
func TestImportDirection(t *testing.T) {
	for _, s := range product(t) {
		for _, imp := range imports(s) {
			checkDirection(t, s, imp)
			if slices.Contains(pure, s.dir) {
				checkPure(t, s, imp)
			}
			for _, never := range forbidden {
				if !s.isTest() && (imp == never || strings.HasPrefix(imp, never+"/")) {
					t.Errorf("%s imports %s, which has no place in the product", s.file, imp)
				}
			}
		}
	}
}

// rule returns the directories that the packages in dir may import from: the longest directory of mayImport counts.
func rule(dir string) []string {
	longest, allowed := "", []string(nil)
	for line := range strings.Lines(mayImport) {
		key, list, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case !within(dir, key) || len(key) < len(longest):
		case key == longest:
			allowed = append(allowed, strings.Fields(list)...)
		default:
			longest, allowed = key, strings.Fields(list)
		}
	}
	return allowed
}

func checkDirection(t *testing.T, s source, imp string) {
	t.Helper()
	other, ours := strings.CutPrefix(imp, module)
	if !ours || within(other, s.dir) {
		return
	}
	if !slices.ContainsFunc(rule(s.dir), func(dir string) bool { return within(other, dir) }) {
		t.Errorf("%s: package %s must not import %s", s.file, s.dir, other)
	}
}

func checkPure(t *testing.T, s source, imp string) {
	t.Helper()
	if slices.Contains(pureMustNot, imp) {
		t.Errorf("%s: a pure package must not import %s", s.file, imp)
	}
	if !strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
		return // standard library
	}
	if !slices.ContainsFunc(pureMayImport, func(p string) bool { return strings.HasPrefix(imp, p) }) {
		t.Errorf("%s: a pure package must not import %s", s.file, imp)
	}
}

// TestPureReadsNoClock checks that pure packages neither read the clock nor wait: the time is one of their values.
func TestPureReadsNoClock(t *testing.T) {
	for _, s := range product(t) {
		if !slices.Contains(pure, s.dir) {
			continue
		}
		for _, use := range s.usesOfTime("Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer",
			"NewTicker") {
			t.Errorf("%s: a pure package must not use the clock", use)
		}
	}
}

// TestProductIsWhatTheProgramUses checks that cmd/nodelet uses each package outside test: what only tests use belongs
// there.
func TestProductIsWhatTheProgramUses(t *testing.T) {
	uses := map[string][]string{}
	for _, s := range product(t) {
		for _, imp := range imports(s) {
			if other, ours := strings.CutPrefix(imp, module); ours {
				uses[s.dir] = append(uses[s.dir], other)
			}
		}
	}
	used := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if !used[dir] {
			used[dir] = true
			for _, other := range uses[dir] {
				visit(other)
			}
		}
	}
	visit("cmd/nodelet")
	for _, s := range product(t) {
		if !used[s.dir] && !s.isTest() && !within(s.dir, "packaging") {
			t.Errorf("%s: cmd/nodelet does not use package %s; is it for tests alone?", s.file, s.dir)
		}
	}
}

// TestShimStaysQuick checks what package shim imports: all of it is initialized before the CNI plugin can end the
// process.
func TestShimStaysQuick(t *testing.T) {
	for _, s := range product(t) {
		for _, imp := range imports(s) {
			if s.dir == "cni/shim" && imp != "os" && imp != "syscall" {
				t.Errorf("%s imports %s; os and syscall alone are initialised early", s.file, imp)
			}
		}
	}
}
