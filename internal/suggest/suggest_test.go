package suggest

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"maxPods", "podsPerCore", "port", "max-pods"}
	for written, want := range map[string]string{
		"maxPod": "max-pods", "MAX_PODS": "max-pods", "prot": "", "por": "port", "frobnicate": "", "": "",
	} {
		if got := Nearest(written, known); got != want {
			t.Errorf("%q: got %q, want %q", written, got, want)
		}
	}
}
