package records

import (
	"log/slog"
	"os"
	"testing"
)

// FuzzRecord: whatever the record of an image contains, it allows only the pods that it names, and the next pull
// replaces it.
func FuzzRecord(f *testing.F) {
	const image, ref = "r.io/app:1", "sha256:1"
	head := `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,
		"imageRef":"sha256:1"`
	for _, seed := range []string{"", "{}", head + "}",
		head + `,"credentialMapping":{"r.io/app":{"nodePodsAccessible":true}}}`,
		head + `,"credentialMapping":{"r.io/app":{"kubernetesSecrets":[{"uid":"u","namespace":"a","name":"s"},null]}}}`} {
		f.Add([]byte(seed))
	}
	s, err := Open(f.TempDir(), "AlwaysVerify", nil, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(s.recordFile(ref), text, 0o600); err != nil {
			t.Fatal(err)
		}
		r, errRecord := s.get(ref)
		known := r.CredentialMapping["r.io/app"]
		pod := secret("team", "pull", "never-in-a-seed", "no-hash")
		named := known.EveryPod
		for _, one := range known.Secrets {
			named = named || one.sameObject(pod.Secrets[0]) || one.CredentialHash == pod.Secrets[0].CredentialHash
		}
		if got := allowed(t, s, image, ref, pod); got != named || got && errRecord != nil {
			t.Errorf("%q: got allowed %t, want %t", text, got, named)
		}
		pulled(t, s, image, ref, pod)
		if !allowed(t, s, image, ref, pod) {
			t.Errorf("after %q: the pod that has pulled the image is refused, want it allowed", text)
		}
	})
}
