package nodelet_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/internal/release"
)

// TestOneKubernetesVersion checks that nodelet, its libraries and the testbed follow the same version of Kubernetes. A
// new minor version begins with internal/release. Then this test, the tests of config, "make reference" and
// TestLongMetricNames say what else has changed.
func TestOneKubernetesVersion(t *testing.T) {
	staging := "v0." + strings.TrimPrefix(release.Kubernetes, "v1.")
	for file, want := range map[string]map[string]string{
		"go.mod": {
			"k8s.io/api": staging, "k8s.io/apimachinery": staging, "k8s.io/client-go": staging,
			"k8s.io/component-helpers": staging, "k8s.io/cri-api": staging, "k8s.io/kubelet": staging,
		},
		"test/testbed/modules/kubernetes/go.mod": {"k8s.io/kubernetes": release.Kubernetes},
		"test/testbed/modules/suite/go.mod":      {"k8s.io/kubernetes": release.Kubernetes},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for module, version := range want {
			found := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(text)
			if found == nil || string(found[1]) != version {
				t.Errorf("%s: got %s %q, want %s", file, module, found, version)
			}
		}
	}
}
