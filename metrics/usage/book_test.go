package usage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSandboxImageComesLater checks that the image of a sandbox that could not be read is read at the next request.
func TestSandboxImageComesLater(t *testing.T) {
	w := newWorld(t, true)
	want := `image="example.com/pause:1",name="` + sandboxID
	w.runtime.imageErr = errors.New("no answer")
	text := w.text(w.WriteCadvisor)
	if !strings.Contains(text, `image="",name="`+sandboxID) {
		t.Errorf("without an answer: got no sandbox without an image in:\n%s", text)
	}
	w.runtime.imageErr = nil
	if text := w.text(w.WriteCadvisor); !strings.Contains(text, want) {
		t.Errorf("with an answer: got no %s in:\n%s", want, text)
	}
}

// TestImageOfContainer checks that the image of a container has the name that the runtime gives it, and that of the
// pod's spec if the runtime knows only its digest.
func TestImageOfContainer(t *testing.T) {
	w := newWorld(t, true)
	for of, want := range map[string]string{
		"docker.io/library/app:latest": "docker.io/library/app:latest",
		"sha256:1":                     "example.com/app:1",
		"":                             "example.com/app:1",
	} {
		w.images = map[string]string{appID: of}
		want := `image="` + want + `",name="` + appID
		if text := w.text(w.WriteCadvisor); !strings.Contains(text, want) {
			t.Errorf("image %q of the runtime: got no %s in:\n%s", of, want, text)
		}
	}
}

// TestCadvisorOfCRIO checks that sandboxes and containers of CRI-O have the names that CRI-O gives them, as in the
// kubelet, and that sandboxes are the container POD.
func TestCadvisorOfCRIO(t *testing.T) {
	w := newWorld(t, true)
	w.runtime.crio = true
	dir := filepath.Join(w.root, "cgroup/kubepods/pod1")
	for id, to := range map[string]string{sandboxID: "crio-" + sandboxID, appID: "crio-" + appID + ".scope"} {
		if err := os.Rename(filepath.Join(dir, id), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	wantLines(t, w.text(w.WriteCadvisor),
		`container_memory_usage_bytes{container="POD",id="/kubepods/pod1/crio-`+sandboxID+
			`",image="example.com/pause:1",name="k8s_POD_web_default_u1_2",namespace="default",pod="web"} 1000000`,
		`container_memory_usage_bytes{container="app",id="/kubepods/pod1/crio-`+appID+
			`.scope",image="example.com/app:1",name="k8s_app_web_default_u1_1",namespace="default",pod="web"} 1000000`)
}
