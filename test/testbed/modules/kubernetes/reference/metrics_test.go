package reference

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers metrics, as the kubelet's main does
	_ "k8s.io/kubernetes/cmd/kubelet/app"                 // registers metrics
	kubeletmetrics "k8s.io/kubernetes/pkg/kubelet/metrics"
	servermetrics "k8s.io/kubernetes/pkg/kubelet/server/metrics"
)

const root = "../../../../.."

// kubeletFamilies returns the names of the families that the kubelet registers for /metrics when it starts.
func kubeletFamilies(t *testing.T) []string {
	t.Helper()
	clientmetrics.EnsureRegistered()
	kubeletmetrics.Register()
	servermetrics.Register()
	registry, ok := legacyregistry.Registerer().(prometheus.Collector)
	if !ok {
		t.Fatalf("got a registry of type %T, want one that describes its metrics", legacyregistry.Registerer())
	}
	descriptions := make(chan *prometheus.Desc)
	go func() { registry.Describe(descriptions); close(descriptions) }()
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	var all []string
	for d := range descriptions {
		if found := name.FindStringSubmatch(d.String()); found != nil {
			all = append(all, found[1])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// built are families whose names nodelet puts together from parts.
var built = []string{
	"kubelet_graceful_shutdown_*_time_seconds", "kubelet_pod_resources_endpoint_*", "go_*", "process_*",
	"kubelet_certificate_manager_*", "kubelet_pod_requests_*",
}

// later are families that the kubelet registers only while it runs, and that of 1.36 which 1.37 does not have.
var later = []string{
	"dra_operations_duration_seconds", "force_cleaned_failed_volume_operations_total",
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
	missing := slices.Clone(built)
	for line := range strings.Lines(string(differences)) {
		head, _, _ := strings.Cut(line, ":")
		if f := strings.Fields(head); len(f) == 3 && f[0] == "kubelet" && f[1] == "/metrics" {
			missing = append(missing, f[2])
		}
	}
	families := kubeletFamilies(t)
	if len(families) < 150 {
		t.Errorf("got only %d families of the kubelet", len(families))
	}
	for _, family := range families {
		named := strings.Contains(text.String(), `"`+family+`"`)
		listed := slices.ContainsFunc(missing, func(pattern string) bool {
			ok, err := path.Match(pattern, family)
			return err == nil && ok
		})
		if !named && !listed {
			t.Errorf("the kubelet has the metric %s: add it, or list it in differences.txt with the reason", family)
		}
	}
	for _, pattern := range missing[len(built):] {
		if !slices.ContainsFunc(append(families, later...), func(family string) bool {
			ok, err := path.Match(pattern, family)
			return err == nil && ok
		}) {
			t.Errorf("differences.txt has %s, which the kubelet does not have", pattern)
		}
	}
}
