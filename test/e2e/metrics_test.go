//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

const knownDiffering = "testdata/metrics/differences.txt"

// metricPaths are the paths of the kubelet API that Prometheus scrapes.
var metricPaths = []string{"metrics", "metrics/cadvisor", "metrics/resource", "metrics/probes", "metrics/slis"}

// TestLongMetricNames compares the names, types and labels of nodelet's metrics with those that the kubelet exposes
// for the same pods. testdata/metrics/differences.txt lists each difference with its reason. promtool checks both: what
// it says of nodelet's metrics, it must say of the kubelet's too.
func TestLongMetricNames(t *testing.T) {
	clean(t)
	promtool, err := cache(t).Promtool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopAgent(t, unix.SIGTERM)
	t.Cleanup(func() {
		stopAgent(t, unix.SIGTERM)
		startAgent(t)
	})
	shapes := map[testbed.AgentKind][]string{}
	findings := map[testbed.AgentKind]map[string]bool{}
	for _, kind := range []testbed.AgentKind{testbed.Kubelet, testbed.Nodelet} {
		if agentRuns() {
			stopAgent(t, unix.SIGTERM)
		}
		startKind(t, kind)
		findings[kind] = map[string]bool{}
		texts := metricsWithPods(t)
		for _, p := range metricPaths {
			for _, line := range shape(texts[p]) {
				shapes[kind] = append(shapes[kind], "/"+p+" "+line)
			}
			for _, line := range checkMetrics(t, promtool, fmt.Sprintf("/%s of %s", p, kind), texts[p]) {
				findings[kind]["/"+p+" "+line] = true
			}
		}
		if kind == testbed.Nodelet {
			checkContainers(t, texts["metrics/cadvisor"])
		}
	}
	listed := differences(lines(t, knownDiffering))
	compareMetrics(t, shapes[testbed.Kubelet], shapes[testbed.Nodelet], listed)
	for _, line := range slices.Sorted(maps.Keys(findings[testbed.Nodelet])) {
		own := strings.Contains(line, " nodelet_") // no excuse for these
		if !findings[testbed.Kubelet][line] && (own || !listed.has("nodelet", line)) {
			t.Errorf("got a complaint of promtool that the kubelet's metrics do not have, want none: %s", line)
		}
	}
	for kind := range shapes {
		t.Logf("%s: %d names with labels, %d findings of promtool", kind, len(shapes[kind]), len(findings[kind]))
	}
}

// metricsWithPods runs the pods of testdata/metrics, and returns the agent's metrics by path.
func metricsWithPods(t *testing.T) map[string]string {
	t.Helper()
	applyFile(t, "metrics/pods.yaml")
	for _, pod := range []string{"metrics-burstable", "metrics-guaranteed", "metrics-host"} {
		waitReady(t, pod)
	}
	scrape(t, "healthz") // its checks are in /metrics/slis
	eventually(t, "the metrics have all containers", func() (string, bool) {
		cadvisor := scrape(t, "metrics/cadvisor")
		for _, want := range []string{`container="busy",`, `container="web",`, `container="sidecar",`,
			`pod="metrics-guaranteed"`} {
			if !strings.Contains(cadvisor, want) {
				return want, false
			}
		}
		return "", strings.Contains(scrape(t, "metrics"), "kubelet_container_log_filesystem_used_bytes{")
	})
	texts := map[string]string{}
	for _, p := range metricPaths {
		texts[p] = scrape(t, p)
	}
	kubectl(t, "delete", "pod", "--all", "--timeout=5m")
	return texts
}

// checkMetrics returns what promtool finds fault with. Text that it cannot parse fails the test.
func checkMetrics(t *testing.T, promtool, what, text string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	const lint = 3 // exit code for style
	if err != nil && cmd.ProcessState.ExitCode() != lint {
		t.Errorf("promtool: check %s: %v: %s", what, err, out)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(l string) bool { return l == "" || l[0] == '#' })
}

var (
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? `)
	labelName  = regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
)

// shape returns an exposition without values: one line "name type label,label" for each set of labels of a metric
// family.
func shape(text string) []string {
	kinds, found := map[string]string{}, map[string]bool{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); strings.HasPrefix(line, "# TYPE ") && len(f) == 4 {
			kinds[f[2]] = f[3]
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := m[1]
		var labels []string
		for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, l[1])
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base, cut := strings.CutSuffix(name, suffix)
			if kind := kinds[base]; cut && (kind == "histogram" || kind == "summary") {
				name = base
				labels = slices.DeleteFunc(labels, func(l string) bool { return l == "le" })
			}
		}
		labels = slices.DeleteFunc(labels, func(l string) bool { return l == "quantile" })
		slices.Sort(labels)
		found[strings.TrimSpace(name+" "+kinds[name]+" "+strings.Join(labels, ","))] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// differences are the lines of a list of differences.
type differences []string

// has reports whether a difference is listed: something that only one side has.
func (d differences) has(side, line string) bool {
	f := strings.Fields(line)
	return slices.ContainsFunc(d, func(l string) bool {
		what, _, _ := strings.Cut(l, ":")
		p := strings.Fields(what) // side endpoint pattern
		if len(p) != 3 || p[0] != side || p[1] != f[0] {
			return false
		}
		ok, _ := path.Match(p[2], f[1])
		return ok
	})
}

// compareMetrics fails the test for each difference that is not listed. make reference checks that the kubelet has what
// is listed for it.
func compareMetrics(t *testing.T, kubelet, nodelet []string, listed differences) {
	t.Helper()
	for _, line := range kubelet {
		if !slices.Contains(nodelet, line) && !listed.has("kubelet", line) {
			t.Errorf("metrics: got no %s, want it as with the kubelet, or list it in %s", line, knownDiffering)
		}
	}
	for _, line := range nodelet {
		if !slices.Contains(kubelet, line) && !listed.has("nodelet", line) {
			t.Errorf("metrics: got %s, which the kubelet has not; want it listed in %s", line, knownDiffering)
		}
	}
}

// checkContainers checks that each container has its names and image, and each pod the metrics of its network.
func checkContainers(t *testing.T, cadvisor string) {
	t.Helper()
	const agnhost, pause = "registry.k8s.io/e2e-test-images/agnhost:2.63.0", "registry.k8s.io/pause:3.10"
	for _, c := range []struct{ pod, container, image, family, more string }{
		{"metrics-guaranteed", "app", agnhost, "container_memory_working_set_bytes", ""},
		{"metrics-burstable", "busy", agnhost, "container_cpu_cfs_periods_total", ""},
		{"metrics-burstable", "web", agnhost, "container_memory_rss", ""},
		{"metrics-burstable", "sidecar", agnhost, "container_spec_cpu_shares", ""},
		{"metrics-host", "app", pause, "container_start_time_seconds", ""},
		{"metrics-burstable", "", pause, "container_network_receive_bytes_total", `interface="eth0"`},
		{"metrics-guaranteed", "", pause, "container_network_transmit_bytes_total", `interface="eth0"`},
	} {
		ok := false
		for line := range strings.Lines(cadvisor) {
			ok = ok || strings.HasPrefix(line, c.family+"{") && hasAll(line, []string{fmt.Sprintf("{container=%q,", c.container),
				fmt.Sprintf("image=%q", c.image), fmt.Sprintf("pod=%q", c.pod), `namespace="default"`, c.more})
		}
		if !ok {
			t.Errorf("cadvisor metrics: got no %s of container %q in pod %s with image %s, want one",
				c.family, c.container, c.pod, c.image)
		}
	}
}
