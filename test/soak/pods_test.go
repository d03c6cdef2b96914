package main

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/testbed"
)

// TestKindsThatNeverRestartAreTraced checks that the trace of each kind of pod with restartPolicy Never names all its
// containers that write one down, in their order.
func TestKindsThatNeverRestartAreTraced(t *testing.T) {
	for _, k := range kinds {
		p := k.pod(&soak{node: &testbed.Node{Name: "node"}}, "churn-0-0")
		if p.Spec.RestartPolicy != corev1.RestartPolicyNever {
			continue
		}
		var want []string
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			if strings.Contains(strings.Join(c.Command, " "), ">>/out/") {
				want = append(want, c.Name)
			}
		}
		if !slices.Equal(k.trace, want) {
			t.Errorf("kind %q: got trace %q, want %q", k.name, k.trace, want)
		}
	}
}

// TestSucceededPodMustHaveRunOnce lets a pod succeed that the API server removes as soon as it is deleted, so nothing
// is seen of it after that.
func TestSucceededPodMustHaveRunOnce(t *testing.T) {
	all := kinds
	defer func() { kinds = all }()
	kinds = slices.DeleteFunc(slices.Clone(all), func(k kind) bool { return k.name != "job" })
	for trace, want := range map[string]int{"app\n": 0, "": 1, "app\napp\n": 1} {
		s := &soak{node: &testbed.Node{Name: "node"}, outDir: t.TempDir(), report: newReport()}
		s.api = apiThatRemovesAtOnce(t)
		if err := os.WriteFile(filepath.Join(s.outDir, "uid"), []byte(trace), 0o600); err != nil {
			t.Fatal(err)
		}
		c := startChurn(s, 0)
		c.one("pod", awaited())
		c.stop()
		if got := s.report.Violations; len(got) != want {
			t.Errorf("a pod that succeeded and ran %q: got violations %q, want %d", trace, got, want)
		}
	}
}

// awaited draws a pod that is not deleted before it has become what it should.
func awaited() *rand.Rand {
	for seed := uint64(0); ; seed++ {
		if r := seeded(seed, 0); r.IntN(len(kinds)) >= 0 && r.IntN(3) != 0 {
			return seeded(seed, 0)
		}
	}
}

// apiThatRemovesAtOnce knows one pod. It has succeeded, and is gone when it is deleted.
func apiThatRemovesAtOnce(t *testing.T) *client.Client {
	t.Helper()
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "uid"},
		Status:     corev1.PodStatus{Phase: corev1.PodSucceeded},
	}
	var deleted atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if deleted.Load() {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		deleted.Store(r.Method == http.MethodDelete)
		_ = json.NewEncoder(w).Encode(p)
	}))
	t.Cleanup(server.Close)
	c, err := client.New(&rest.Config{Host: server.URL}, 100, 100, "test")
	if err != nil {
		t.Fatal(err)
	}
	return c
}
