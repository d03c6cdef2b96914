package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRealFilesAreQuiet checks that the files of kubeadm and kind, which set many fields to zero for "not set", cause
// no warnings.
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
			t.Errorf("%s: got the warning %s, want none", file, w)
		}
	}
}

func TestWarnings(t *testing.T) {
	c := mustLoad(t, "qosReserved: {memory: 50%}\nhairpinMode: promiscuous-bridge\nmaxPods: 20\n"+
		"contentType: application/vnd.kubernetes.protobuf\n"+
		"featureGates: {NodeSwapp: true, NodeSwap: false, AllAlpha: false, AllBeta: true, ImageVolumeWithDigest: true,\n"+
		"  ContainerStopSignals: true, EnvFiles: false, HugepageAwareEviction: false,\n"+
		"  APIServerIdentity: false}\n",
		"--lock-file=/x", "--housekeeping-interval=10s", "--storage-driver-user=me", "--kernel-memcg-notification",
		"--pod-infra-container-image=pause")
	var got []string
	for _, w := range c.Warnings {
		got = append(got, w.String())
	}
	want := []string{
		"hairpinMode is accepted but has no effect in nodelet: the network plugin decides that",
		"qosReserved is accepted but has no effect in nodelet: " +
			"reserve memory with requests, see memoryReservationPolicy",
		"--lock-file is accepted but has no effect in nodelet: nodelet locks its root directory",
		"--housekeeping-interval is accepted but has no effect in nodelet: " +
			"a setting of cAdvisor, which nodelet does not contain",
		"--pod-infra-container-image is accepted but has no effect in nodelet: the runtime chooses the pause image; " +
			"older kubeadm still writes this flag",
		"--storage-driver-user is accepted but has no effect in nodelet: a setting " +
			"of cAdvisor, which nodelet does not contain",
		"featureGates.APIServerIdentity is accepted but has no effect in nodelet: it is not a gate of the kubelet",
		"featureGates.EnvFiles is accepted but has no effect in nodelet",
		"featureGates.HugepageAwareEviction is accepted but has no effect in nodelet",
		"featureGates.ImageVolumeWithDigest is accepted but has no effect in nodelet: nodelet does not have this feature",
		"featureGates.NodeSwap is locked to true in Kubernetes " + KubernetesVersion + "; the setting has no effect",
		"featureGates.NodeSwapp is not a feature gate of Kubernetes " + KubernetesVersion + `; did you mean "NodeSwap"?`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestOtherRootIsQuiet checks that another root directory does not count as a setting without effect.
func TestOtherRootIsQuiet(t *testing.T) {
	if got := mustLoad(t, "", "--root-dir=/x", "--kubeconfig=/k").Warnings; len(got) > 0 {
		t.Errorf("got the warnings %v, want none", got)
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
			t.Errorf("%s with %v: got %v, want %v", c.name, c.set, got, c.want)
		}
	}
	if n := len(gates()); n != 254 {
		t.Errorf("got %d gates read, want 254", n)
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
			t.Errorf("%q: got %q, want %q", version, VersionText(), want)
		}
	}
}

// TestGateRules checks that every gate that the kubelet reads has a rule, and that no rule is for an unknown gate.
func TestGateRules(t *testing.T) {
	read := 0
	for line := range strings.Lines(gatesText) {
		name, rest, _ := strings.Cut(line, " ")
		if !strings.HasSuffix(rest, " kubelet\n") {
			continue
		}
		read++
		if _, ok := gateRules[name]; !ok {
			t.Errorf("gateRules: got no %s, want it: the kubelet reads it", name)
		}
	}
	if read == 0 {
		t.Errorf("got no gates that the kubelet reads, want some")
	}
	for name, rule := range gateRules {
		g, known := gates()[name]
		if !known {
			t.Errorf("gateRules: got %s, want only gates", name)
		}
		if v := rule.support(g); v == NoEffect && rule.note == "" {
			t.Errorf("%s: got %q without a note, want one", name, v)
		}
	}
}

// TestTablesNameSettings checks that the tables beside settingTable name settings of it.
func TestTablesNameSettings(t *testing.T) {
	known := map[string]bool{}
	for _, k := range settingTable {
		known[k.name()] = true
		if _, differs := differences[k.name()]; differs && !k.acts {
			t.Errorf("%s: got a difference and no effect, want only one of them", k.name())
		}
		if _, has := usual[k.name()]; has && k.acts {
			t.Errorf("%s: got a usual value although it acts, want none", k.name())
		}
	}
	for name, lost := range breaks {
		if _, isGate := gates()[lost.gate]; !known[name] || !isGate {
			t.Errorf("got %s with the gate %s, want only settings and gates", name, lost.gate)
		}
	}
	for _, table := range []map[string]string{differences, usual} {
		for name := range table {
			if !known[name] {
				t.Errorf("got %s, want only settings", name)
			}
		}
	}
	for _, field := range refusedFields {
		if !known[field] {
			t.Errorf("got %s, want only settings", field)
		}
	}
}

// TestRefusedFieldsAreRefused checks that a value of such a field is an error that names it.
func TestRefusedFieldsAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	for _, field := range refusedFields {
		text := "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n" + field + ": true\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load([]string{"--config", file, "--hostname-override=n"}); err == nil ||
			!strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v, want an error that names it", field, err)
		}
	}
}

func TestMissing(t *testing.T) {
	const off = "qosReserved: {memory: 50%}\nhairpinMode: none\n"
	const text = off + "featureGates: {QOSReserved: true}\n"
	want := "qosReserved has no effect in nodelet: the memory requests of pods are not reserved; " +
		"to start anyway, add --accept-missing=qosReserved"
	if err := mustLoad(t, text).Missing(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := mustLoad(t, text).Missing("qosReserved"); err != nil {
		t.Errorf("accepted by the caller: got %v", err)
	}
	if err := mustLoad(t, text, "--accept-missing=maxPods,qosReserved").Missing(); err != nil {
		t.Errorf("accepted by the flag: got %v", err)
	}
	if err := mustLoad(t, "hairpinMode: none\n").Missing(); err != nil {
		t.Errorf("no pod relies on it: got %v", err)
	}
	if err := mustLoad(t, off).Missing(); err != nil {
		t.Errorf("without the gate the kubelet reserves nothing either: got %v", err)
	}
}

// TestUnknownFields checks that an unknown field that is not set is a warning, in the file and in a drop-in,
// and one with a value an error.
func TestUnknownFields(t *testing.T) {
	const text = "is accepted but has no effect in nodelet: unknown field"
	dir := t.TempDir()
	dropIn := head + "newInDropIn: {list: [], limit: \"0\"}\n"
	if err := os.WriteFile(filepath.Join(dir, "a.conf"), []byte(dropIn), 0o600); err != nil {
		t.Fatal(err)
	}
	body := "newObject: {}\nnewSpan: 0s\nnewNull: null\nlogging: {verbosity: 0, newText: \"\"}\nmaxPodz: 0\n" +
		"maxPods: 20\nMaxPods: 0\n" +
		"newSwitch: false\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2, more: null}]\n"
	c := mustLoad(t, body, "--config-dir="+dir)
	want := []Warning{
		{Field: "MaxPods", Text: text + `; did you mean "maxPods"?`},
		{Field: "logging.newText", Text: text},
		{Field: "maxPodz", Text: text + `; did you mean "maxPods"?`},
		{Field: "newInDropIn", Text: text},
		{Field: "newObject", Text: text},
		{Field: "newSpan", Text: text},
		{Field: "newSwitch", Text: text},
		{Field: "shutdownGracePeriodByPodPriority[0].more", Text: text},
	}
	if diff := cmp.Diff(want, c.Warnings); diff != "" || c.Kubelet.MaxPods != 20 {
		t.Errorf("got maxPods %d, want 20; -want +got:\n%s", c.Kubelet.MaxPods, diff)
	}
	for _, set := range []string{"{a: {b: 1}}", "[{}]", "1s", "true", "x", "-1"} {
		if _, err := load(t, "newThing: "+set); err == nil || !strings.Contains(err.Error(), "newThing: unknown field") {
			t.Errorf("%s: got %v, want an error for newThing", set, err)
		}
	}
}
