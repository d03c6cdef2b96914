package usage

import (
	"errors"
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
