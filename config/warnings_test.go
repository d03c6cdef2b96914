package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRealFilesAreQuiet checks that the files of kubeadm and kind, which set many fields to their default or to zero,
// cause warnings only for values that differ from the default and have no effect.
func TestRealFilesAreQuiet(t *testing.T) {
	for file, flags := range map[string][]string{
		"testdata/kubeadm.yaml": nil,
		"testdata/kind.yaml":    {"--node-ip=10.0.0.1", "--provider-id=kind://x"},
	} {
		c, err := Load(append([]string{"--config", file, "--hostname-override=n"}, flags...))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.Warnings {
			for _, k := range knobs {
				if k.field == w.Field && (k.acts || textAt(&c.Kubelet, k.field) == textAt(defaulted(), k.field)) {
					t.Errorf("%s: a needless warning: %s", file, w)
				}
			}
			if strings.Contains(w.Field, "logging") || strings.Contains(w.Field, "memorySwap") {
				t.Errorf("%s: a needless warning: %s", file, w)
			}
		}
	}
}

func defaulted() *KubeletConfiguration {
	c := &KubeletConfiguration{}
	setDefaults(c)
	return c
}

func TestWarnings(t *testing.T) {
	c := mustLoad(t, "qosReserved: {memory: 50%}\nhairpinMode: promiscuous-bridge\nmaxPods: 20\n"+
		"featureGates: {NodeSwapp: true, NodeSwap: false, AllAlpha: false, AllBeta: true, GRPCContainerProbeTLS: true}\n",
		"--lock-file=/x", "--housekeeping-interval=10s", "--storage-driver-user=me", "--kernel-memcg-notification",
		"--pod-infra-container-image=pause")
	var got []string
	for _, w := range c.Warnings {
		got = append(got, w.String())
	}
	want := []string{
		"qosReserved is accepted but has no effect in nodelet: " +
			"reserve memory with requests, see memoryReservationPolicy",
		"--kernel-memcg-notification is accepted but has no effect in nodelet: nodelet always uses the kernel's notifications",
		"--lock-file is accepted but has no effect in nodelet: nodelet locks its root directory",
		"--storage-driver-user is accepted but has no effect in nodelet: a setting of cAdvisor, which nodelet does not contain",
		"--pod-infra-container-image is accepted but has no effect in nodelet: the runtime chooses the pause image; " +
			"older kubeadm still writes this flag",
		"featureGates.GRPCContainerProbeTLS is accepted but has no effect in nodelet",
		"featureGates.NodeSwap is locked to true in Kubernetes " + KubernetesVersion + "; the setting has no effect",
		"featureGates.NodeSwapp is not a feature gate of Kubernetes " + KubernetesVersion + `; did you mean "NodeSwap"?`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCertificatesStay checks that another root directory alone warns about the certificates.
func TestCertificatesStay(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"--root-dir=/x", "--kubeconfig=/k"}, 1},
		{[]string{"--root-dir=/x", "--kubeconfig=/k", "--cert-dir=/x/pki"}, 0},
		{[]string{"--root-dir=/x"}, 0},
		{[]string{"--kubeconfig=/k"}, 0},
	} {
		if got := mustLoad(t, "", c.args...).Warnings; len(got) != c.want {
			t.Errorf("%q: got warnings %v, want %d", c.args, got, c.want)
		}
	}
}

func TestGates(t *testing.T) {
	for _, c := range []struct {
		set  map[string]bool
		name string
		want bool
	}{
		{nil, "NodeSwap", true},
		{map[string]bool{"NodeSwap": false}, "NodeSwap", true}, // locked
		{nil, "MemoryQoS", true},
		{map[string]bool{"AllBeta": false}, "MemoryQoS", false},
		{nil, "CSIVolumeHealth", false},
		{map[string]bool{"AllAlpha": true}, "CSIVolumeHealth", true},
		{map[string]bool{"AllAlpha": true, "CSIVolumeHealth": false}, "CSIVolumeHealth", false},
		{map[string]bool{"AllBeta": false}, "KubeletCrashLoopBackOffMax", false},
		{nil, "NoSuchGate", false},
		{map[string]bool{"NoSuchGate": true}, "NoSuchGate", true},
		{map[string]bool{"AllAlpha": true}, "NoSuchGate", false},
	} {
		if got := gateEnabled(c.set, c.name); got != c.want {
			t.Errorf("%s with %v: %v", c.name, c.set, got)
		}
	}
	if n := len(gates()); n != 254 {
		t.Errorf("%d gates were read", n)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"maxPods", "podsPerCore", "port", "max-pods"}
	for written, want := range map[string]string{
		"maxPod": "max-pods", "MAX_PODS": "max-pods", "prot": "", "por": "port", "frobnicate": "", "": "",
	} {
		if got := nearest(written, known); got != want {
			t.Errorf("%q: %q; want %q", written, got, want)
		}
	}
}

func TestVersionText(t *testing.T) {
	defer func(v string) { Version = v }(Version)
	for version, want := range map[string]string{
		"0.1.0":            "0.1.0",
		"":                 "unknown",
		"v1-2-g12ab_dirty": "v1-2-g12ab-dirty",
		".a..b.":           "-a.-b-",
	} {
		want = "Kubernetes " + KubernetesVersion + "+nodelet." + want + "\n"
		if Version = version; VersionText() != want {
			t.Errorf("%q: %q; want %q", version, VersionText(), want)
		}
	}
}
