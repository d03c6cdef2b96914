package images

import (
	"errors"
	"strings"
	"testing"
)

const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestParseName(t *testing.T) {
	for _, tc := range []struct{ image, pull, repository string }{
		{"busybox", "busybox:latest", "docker.io/library/busybox"},
		{"busybox:1.36", "busybox:1.36", "docker.io/library/busybox"},
		{"busybox@" + digest, "busybox@" + digest, "docker.io/library/busybox"},
		{"busybox:1@" + digest, "busybox:1@" + digest, "docker.io/library/busybox"},
		{"team/app", "team/app:latest", "docker.io/team/app"},
		{"registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10", "registry.k8s.io/pause"},
		{"localhost:5000/a/b", "localhost:5000/a/b:latest", "localhost:5000/a/b"},
		{"index.docker.io/library/busybox", "index.docker.io/library/busybox:latest", "docker.io/library/busybox"},
	} {
		got, err := parseName(tc.image)
		if err != nil || got.pull != tc.pull || got.repository != tc.repository {
			t.Errorf("%s: got %+v, %v, want %+v", tc.image, got, err, tc)
		}
	}
}

func TestInvalidNames(t *testing.T) {
	for image, detail := range map[string]string{
		"":                "invalid reference format",
		"ROOT":            "must be lowercase",
		"http://root":     "invalid reference format",
		"a b":             "invalid reference format",
		"busybox:":        "invalid reference format",
		"busybox@sha256:": "invalid reference format",
		digest[7:]:        "cannot specify 64-byte hexadecimal strings",
	} {
		_, err := parseName(image)
		r, ok := errors.AsType[*Reason](err)
		if !ok || r.Reason != "InvalidImageName" {
			t.Errorf("%q: got %v", image, err)
			continue
		}
		want := "Failed to apply default image tag \"" + image + "\": couldn't parse image name \"" + image + "\": "
		if !strings.HasPrefix(r.Message, want) || !strings.Contains(r.Message, detail) {
			t.Errorf("%q: got message %q, want %q and %q", image, r.Message, want, detail)
		}
	}
}

// FuzzParseName checks that whatever a pod names, the result is a name that parses again to itself.
func FuzzParseName(f *testing.F) {
	for _, seed := range []string{"busybox", "a/b:c", "localhost:5000/x@" + digest, "x:y:z", "[::1]:5000/a", "ä", "a//b",
		"a:latest"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, image string) {
		n, err := parseName(image)
		if err != nil {
			return
		}
		again, err := parseName(n.pull)
		if err != nil || again != n {
			t.Errorf("%q: got %+v, and from that %+v, %v, want the same", image, n, again, err)
		}
		if !strings.HasPrefix(n.pull, image) || !strings.Contains(n.repository, "/") {
			t.Errorf("%q: got %+v, want a pull name that begins with it and a full repository", image, n)
		}
	})
}
