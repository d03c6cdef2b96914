//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	savedMetrics   = "testdata/metrics/kubelet-v1.36.3.txt"
	knownDiffering = "testdata/metrics/differences.txt"
)

// TestLongMetricNames compares the names, types and labels of nodelet's metrics with those that the kubelet exposes
// for the same pods. testdata/metrics/differences.txt lists each difference with its reason. With -golden it saves
// what the agent of the testbed exposes, which must be the kubelet; see golden.
func TestLongMetricNames(t *testing.T) {
	clean(t)
	applyFile(t, "metrics/pods.yaml")
	waitReady(t, time.Minute, "metrics-burstable")
	waitReady(t, time.Minute, "metrics-guaranteed")
	waitReady(t, time.Minute, "metrics-host")
	scrape(t, "healthz") // its checks are in /metrics/slis
	var got []string
	eventually(t, 5*time.Minute, "the metrics have all containers", func() (string, bool) {
		cadvisor := scrape(t, "metrics/cadvisor")
		for _, want := range []string{`container="busy",`, `container="web",`, `container="sidecar",`,
			`pod="metrics-guaranteed"`} {
			if !strings.Contains(cadvisor, want) {
				return want, false
			}
		}
		return "", strings.Contains(scrape(t, "metrics"), "kubelet_container_log_filesystem_used_bytes{")
	})
	for _, endpoint := range []string{
		"metrics",
		"metrics/cadvisor",
		"metrics/resource",
		"metrics/probes",
		"metrics/slis",
	} {
		for _, line := range shape(scrape(t, endpoint)) {
			got = append(got, "/"+endpoint+" "+line)
		}
	}
	if *golden {
		write(t, savedMetrics, strings.Join(got, "\n")+"\n")
		return
	}
	compareMetrics(t, lines(t, savedMetrics), got, lines(t, knownDiffering))
	checkContainers(t, scrape(t, "metrics/cadvisor"))
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

// compareMetrics fails the test for each difference that is not listed, and for each listed difference that does not
// exist.
func compareMetrics(t *testing.T, kubelet, nodelet, listed []string) {
	t.Helper()
	used := map[string]bool{}
	known := func(side, line string) bool {
		f := strings.Fields(line)
		for _, l := range listed {
			what, _, _ := strings.Cut(l, ":")
			p := strings.Fields(what) // side endpoint pattern
			if len(p) != 3 || p[0] != side || p[1] != f[0] {
				continue
			}
			if ok, _ := path.Match(p[2], f[1]); ok {
				used[l] = true
				return true
			}
		}
		return false
	}
	for _, line := range kubelet {
		if !slices.Contains(nodelet, line) && !known("kubelet", line) {
			t.Errorf("metrics: got no %s, want it as with the kubelet, or list it in %s", line, knownDiffering)
		}
	}
	for _, line := range nodelet {
		if !slices.Contains(kubelet, line) && !known("nodelet", line) {
			t.Errorf("metrics: got %s, which the kubelet has not; want it listed in %s", line, knownDiffering)
		}
	}
	for _, l := range listed {
		if !used[l] && strings.HasPrefix(l, "kubelet /metrics/") { // make reference checks those of /metrics
			t.Errorf("%s: got an entry without a difference, want it removed: %s", knownDiffering, l)
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
