package pods

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/kube/server"
)

// TestTarget checks that a name which pods of several namespaces have needs a namespace, and that pods of one
// namespace and name, a static one and one of the API server, do not.
func TestTarget(t *testing.T) {
	root := t.TempDir()
	socket := filepath.Join(root, "nodelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
		}
	}
	all := []*corev1.Pod{pod("a", "twice"), pod("a", "twice"), pod("a", "spread"), pod("b", "spread")}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(all) //nolint:errcheck // the client sees it
	})}
	go s.Serve(l) //nolint:errcheck // it ends with the test
	defer s.Close()
	for _, c := range []struct{ namespace, name, want string }{
		{"", "twice", "a"},
		{"a", "twice", "a"},
		{"", "a/twice", "a"},
		{"b", "spread", "b"},
		{"", "spread", ""},
	} {
		want := server.Container{}
		if c.want != "" {
			want = server.Container{Namespace: c.want, Pod: filepath.Base(c.name), Name: "app"}
		}
		got, err := target(t.Context(), podapi.NewClient(root), c.namespace, c.name, "")
		if got != want || (err == nil) != (c.want != "") {
			t.Errorf("%q in namespace %q: got %+v, %v, want %+v", c.name, c.namespace, got, err, want)
		}
	}
}
