package node

import (
	"fmt"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkIdleSync measures what an idle node does each 10 s: it computes and compares the status, and sends nothing.
func BenchmarkIdleSync(b *testing.B) {
	api := &fakeAPI{}
	r, err := New(testConfig(b), api.client(b).Core, api.config(), api.renew)
	if err != nil {
		b.Fatal(err)
	}
	var images []*runtimeapi.Image
	for i := range 60 {
		images = append(images, &runtimeapi.Image{
			RepoDigests: []string{fmt.Sprintf("registry.k8s.io/image-%d@sha256:%064d", i, i)},
			RepoTags:    []string{fmt.Sprintf("registry.k8s.io/image-%d:v1", i)},
			Size:        uint64(i),
		})
	}
	r.SetImages(images)
	r.setRuntime(readyRuntime)
	n, err := r.tryRegister(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	r.take(n)
	r.sync(b.Context(), time.Now())
	before := len(api.patches)
	b.ReportAllocs()
	for b.Loop() {
		r.sync(b.Context(), time.Now())
	}
	if len(api.patches) != before {
		b.Errorf("got %d patches, want none", len(api.patches)-before)
	}
}
