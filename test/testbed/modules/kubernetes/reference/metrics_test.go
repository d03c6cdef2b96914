package reference

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/cadvisor/lib/container"
	cadvisormetrics "github.com/google/cadvisor/lib/metrics"
	info "github.com/google/cadvisor/lib/model"
	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers metrics, as the kubelet's main does
	_ "k8s.io/kubernetes/cmd/kubelet/app"                 // registers metrics
	kubeletmetrics "k8s.io/kubernetes/pkg/kubelet/metrics"
	"k8s.io/kubernetes/pkg/kubelet/metrics/collectors"
	"k8s.io/kubernetes/pkg/kubelet/prober"
	servermetrics "k8s.io/kubernetes/pkg/kubelet/server/metrics"
	"k8s.io/utils/clock"
)

const root = "../../../../.."

// kubeletFamilies returns the families that the kubelet registers for each of its paths when it starts.
func kubeletFamilies(t *testing.T) map[string]map[string]string {
	t.Helper()
	clientmetrics.EnsureRegistered()
	kubeletmetrics.Register()
	servermetrics.Register()
	cadvisor, resources := metrics.NewKubeRegistry(), metrics.NewKubeRegistry()
	probes := metrics.NewKubeRegistry()
	kinds := container.MetricSet{}
	for _, kind := range []container.MetricKind{ // those of pkg/kubelet/server without AppMetrics
		container.CpuUsageMetrics, container.MemoryUsageMetrics, container.DiskIOMetrics, container.DiskUsageMetrics,
		container.NetworkUsageMetrics, container.ProcessMetrics, container.OOMMetrics, container.PressureMetrics,
	} {
		kinds[kind] = struct{}{}
	}
	cadvisor.RawMustRegister(cadvisormetrics.NewPrometheusMachineCollector(nil, kinds),
		cadvisormetrics.NewPrometheusCollector(nil, nil, kinds, clock.RealClock{}, info.RequestOptions{}))
	resources.CustomMustRegister(collectors.NewResourceMetricsCollector(nil))
	probes.MustRegister(prober.ProberResults, prober.ProberDuration)
	return map[string]map[string]string{
		"/metrics":          families(t, legacyregistry.Registerer()),
		"/metrics/cadvisor": families(t, cadvisor.Registerer()),
		"/metrics/resource": families(t, resources.Registerer()),
		"/metrics/probes":   families(t, probes.Registerer()),
	}
}

// families returns the help of each family of a registry, by name.
func families(t *testing.T, registry any) map[string]string {
	t.Helper()
	collector, ok := registry.(prometheus.Collector)
	if !ok {
		t.Fatalf("got a registry of type %T, want one that describes its metrics", registry)
	}
	descriptions := make(chan *prometheus.Desc)
	go func() { collector.Describe(descriptions); close(descriptions) }()
	named := regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]*)`)
	all := map[string]string{}
	for d := range descriptions {
		if found := named.FindStringSubmatch(d.String()); found != nil {
			all[found[1]] = found[2]
		}
	}
	return all
}

// built are families whose names nodelet puts together from parts.
var built = []string{
	"kubelet_graceful_shutdown_*_time_seconds", "kubelet_pod_resources_endpoint_*", "go_*", "process_*",
	"kubelet_certificate_manager_*", "kubelet_pod_requests_*",
}

// later are families that the kubelet registers only while it runs.
var later = []string{
	"csi_node_storage_health_status", "dra_operations_duration_seconds", "force_cleaned_failed_volume_operations_total",
	"kubelet_imagemanager_ondisk_pulledrecords", "kubelet_image_manager_ensure_image_requests_total",
	"reconstruct_volume_operations_total", "volume_operation_total_seconds", "workqueue_depth",
}

// TestMetricFamilies checks that the sources of nodelet name each family that the kubelet registers, or that the list
// of differences has it with a reason.
func TestMetricFamilies(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for file := range strings.Lines(string(out)) {
		if file = strings.TrimSpace(file); strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "test/") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		text.Write(source)
	}
	differences, err := os.ReadFile(filepath.Join(root, "test/e2e/testdata/metrics/differences.txt"))
	if err != nil {
		t.Fatal(err)
	}
	missing, atTimes := map[string][]string{}, slices.Clone(built)
	for line := range strings.Lines(string(differences)) {
		head, reason, _ := strings.Cut(line, ": ")
		f := strings.Fields(head)
		if len(f) != 3 || f[0] != "kubelet" {
			continue
		}
		missing[f[1]] = append(missing[f[1]], f[2])
		if strings.HasPrefix(reason, "either has it once ") {
			atTimes = append(atTimes, f[2])
		}
	}
	for path, families := range kubeletFamilies(t) {
		if least := fewest[path]; len(families) < least {
			t.Errorf("got only %d families of the kubelet for %s, want %d or more", len(families), path, least)
		}
		names := slices.Sorted(maps.Keys(families))
		for _, family := range names {
			if !named(text.String(), family) && !matches(slices.Concat(missing[path], built, hidden), family) {
				t.Errorf("the kubelet has the metric %s at %s: add it, or list it in differences.txt", family, path)
			}
			got, want := stage(text.String(), family), families[family]
			if got != "" && strings.HasPrefix(want, "[") && !strings.HasPrefix(want, got) {
				t.Errorf("%s: got the help %s…, want %.20s…", family, got, want)
			}
		}
		for _, pattern := range missing[path] {
			for _, family := range names {
				if matches([]string{pattern}, family) && !matches(atTimes, family) && named(text.String(), family) {
					t.Errorf("differences.txt says that only the kubelet has %s at %s, but sources of nodelet name it", family, path)
				}
			}
			if !slices.ContainsFunc(append(names, later...), func(family string) bool {
				return matches([]string{pattern}, family)
			}) {
				t.Errorf("differences.txt has %s at %s, which the kubelet does not have", pattern, path)
			}
		}
	}
}

// named reports whether the text names a family: as a whole, or as the part behind the scope that it is about.
func named(text, family string) bool {
	found := strings.Contains(text, `"`+family+`"`)
	for _, scope := range []string{"container", "pod", "node"} {
		rest, cut := strings.CutPrefix(family, scope)
		found = found || cut && strings.Contains(text, `"`+rest+`"`)
	}
	return found
}

// stage returns the stage with which the help of a family begins, such as "[ALPHA]", or "".
func stage(text, family string) string {
	found := regexp.MustCompile(`"` + family + `",\s*"(\[[A-Z]+\])`).FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	return found[1]
}

// hidden are deprecated families, which a kubelet of this version does not show.
var hidden = []string{"scrape_error"}

// fewest are lower bounds of the numbers of families, so that the test cannot pass without them.
var fewest = map[string]int{"/metrics": 150, "/metrics/cadvisor": 70, "/metrics/resource": 9, "/metrics/probes": 2}

// matches reports whether a family matches one of the patterns.
func matches(patterns []string, family string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, family)
		return err == nil && ok
	})
}
