package manifest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestSetDefaults checks that the JSON files beside the manifests are what the API server of Kubernetes 1.36.3 makes
// of their specs.
func TestSetDefaults(t *testing.T) {
	files, err := filepath.Glob("testdata/defaults/*.yaml")
	if err != nil || len(files) < 7 {
		t.Fatalf("got %d manifests (%v), want at least 7", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got := &corev1.Pod{}
			mustRead(t, file, got)
			var want corev1.PodSpec
			mustRead(t, strings.TrimSuffix(file, ".yaml")+".json", &want)
			setAllDefaults(got)
			if d := cmp.Diff(want, got.Spec); d != "" {
				t.Errorf("-want (the API server's) +got\n%s", d)
			}
			again := got.DeepCopy()
			setAllDefaults(again)
			if d := cmp.Diff(got, again); d != "" {
				t.Errorf("a second time: want no change, got\n%s", d)
			}
		})
	}
}

func setAllDefaults(pod *corev1.Pod) {
	SetDefaults(pod)
	setPodLevelDefaults(pod)
}

func mustRead(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(file, ".json") {
		err = json.Unmarshal(data, into)
	} else {
		err = yaml.UnmarshalStrict(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
