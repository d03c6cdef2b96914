// Package reference compares nodelet's tables with the kubelet of the version of Kubernetes that this module requires:
// feature gates, flags, defaults, and which configurations it accepts. "make reference" runs it; with -update it
// rewrites the tables in config. It owns no table and is not part of the product.
package reference

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // registers flags
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	_ "k8s.io/kubernetes/pkg/features" // registers the feature gates
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/sysctl"
)

var update = flag.Bool("update", false, "rewrite the tables")

const config = "../../../../../config"

// kubernetesVersion returns the version of k8s.io/kubernetes that this module requires, for example "v1.37.2".
func kubernetesVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^require k8s\.io/kubernetes (v\S+)`).FindSubmatch(text)
	if found == nil {
		t.Fatal("../go.mod does not require k8s.io/kubernetes")
	}
	return string(found[1])
}

// compare compares the lines of a table with what the kubelet has, without regard to their order, and fails with each
// line that is missing or too many. With -update it writes the file instead.
func compare(t *testing.T, file string, want []string) {
	t.Helper()
	file = filepath.Join(config, file)
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(want, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%s: got no line %q, which the kubelet has", file, line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%s: got the line %q, which the kubelet does not have", file, line)
		}
	}
}

// TestFeatureGates compares config/gates.txt.
func TestFeatureGates(t *testing.T) {
	kubernetes := kubernetesVersion(t)
	lines := []string{"# Feature gates of Kubernetes " + kubernetes +
		": name, default, whether the default is locked, stage (GA, BETA, ALPHA, DEPRECATED), who reads it."}
	at := version.MustParse(kubernetes)
	if err := logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		t.Fatal(err)
	}
	all := utilfeature.DefaultMutableFeatureGate.GetAllVersioned()
	read := readGates(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		spec, ok := current(all[name], at)
		if !ok {
			continue
		}
		stage := string(spec.PreRelease)
		if stage == string(featuregate.GA) {
			stage = "GA"
		}
		locked := map[bool]string{true: "locked", false: "free"}[spec.LockToDefault]
		reader := "others"
		if read[string(name)] {
			reader = "kubelet"
		}
		lines = append(lines, fmt.Sprintf("%s %v %s %s %s", name, spec.Default, locked, stage, reader))
	}
	compare(t, "gates.txt", lines)
}

// current returns the newest specification of a gate that applies to a version of Kubernetes.
func current(specs featuregate.VersionedSpecs, at *version.Version) (spec featuregate.FeatureSpec, ok bool) {
	var newest *version.Version
	for _, s := range specs {
		if at.AtLeast(s.Version) && (newest == nil || s.Version.AtLeast(newest)) {
			spec, newest = s, s.Version
		}
	}
	return spec, newest != nil
}

// readGates returns the gates that the kubelet's own packages, and the libraries whose options it has, look at.
func readGates(t *testing.T) map[string]bool {
	t.Helper()
	constant := regexp.MustCompile(`(?m)^\s*(\w+)\s*(?:(?:featuregate\.)?Feature\s*)?=\s*"(\w+)"`)
	use := regexp.MustCompile(`(?:[fF]eatures|logsapi)\.([A-Z]\w+)|(?:\bEnabled\(\s*|gate := )(?:\w+\.)?([A-Z]\w+)`)
	names, used := map[string]string{}, map[string]bool{}
	for _, part := range []struct{ module, dirs string }{
		{"k8s.io/kubernetes", "pkg/features pkg/kubelet cmd/kubelet pkg/volume pkg/probe pkg/credentialprovider pkg/util " +
			"pkg/securitycontext pkg/security pkg/fieldpath pkg/apis/core/v1 pkg/apis/core/helper pkg/api/v1"},
		{"k8s.io/component-base", "logs zpages/features metrics"},
		{"k8s.io/apiserver", "pkg/features pkg/authentication/request/x509"},
		{"k8s.io/client-go", "features transport rest tools/cache util/watchlist"},
		{"k8s.io/component-helpers", "nodedeclaredfeatures"},
	} {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", part.module).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range strings.Fields(part.dirs) {
			for _, text := range sources(t, filepath.Join(strings.TrimSpace(string(out)), dir)) {
				for _, m := range constant.FindAllStringSubmatch(text, -1) {
					names[m[1]] = m[2]
				}
				if dir == "pkg/features" || dir == "features" {
					continue // it defines the gates
				}
				for _, m := range use.FindAllStringSubmatch(text, -1) {
					used[m[1]+m[2]] = true
				}
			}
		}
	}
	read := map[string]bool{}
	for name, gate := range names {
		read[gate] = read[gate] || used[name]
	}
	return read
}

// sources returns the texts of the Go files in and below a directory, without tests.
func sources(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all = append(all, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFlags compares config/testdata/flags.txt.
func TestFlags(t *testing.T) {
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	options.NewKubeletFlags().AddFlags(fs)
	c, err := options.NewKubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	options.AddKubeletConfigFlags(fs, c)
	options.AddGlobalFlags(fs)
	lines := []string{"# Flags of the kubelet " + kubernetesVersion(t) +
		": name, shorthand, type, whether it may stand alone, default (JSON)."}
	fs.VisitAll(func(f *pflag.Flag) {
		short, alone := f.Shorthand, "value"
		if short == "" {
			short = "-"
		}
		if f.NoOptDefVal != "" {
			alone = "alone"
		}
		value, err := json.Marshal(f.DefValue)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s", f.Name, short, f.Value.Type(), alone, value))
	})
	compare(t, "testdata/flags.txt", lines)
}

// TestDefaults compares config/testdata/defaults.json.
func TestDefaults(t *testing.T) {
	scheme, _, err := kubeletscheme.NewSchemeAndCodecs()
	if err != nil {
		t.Fatal(err)
	}
	c := &v1beta1.KubeletConfiguration{}
	scheme.Default(c)
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "testdata/defaults.json", strings.Split(string(text), "\n"))
}

// TestSafeSysctls compares the sysctls that any pod may set.
func TestSafeSysctls(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, "agent/admission/host.go"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)var safeSysctls = .*?\n}`).Find(source)
	var got []string
	for _, found := range regexp.MustCompile(`"([^"]+)"`).FindAllSubmatch(list, -1) {
		got = append(got, string(found[1]))
	}
	want := sysctl.SafeSysctlAllowlist(t.Context())
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("host.go has the safe sysctls %q, want %q", got, want)
	}
}

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// TestAnswers compares the answers in config/testdata/answers.txt.
func TestAnswers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(config, "testdata/answers.txt"))
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(string(text), "\n== ")
	out := []string{"# What the kubelet " + kubernetesVersion(t) +
		" says to these configurations (strict decoding, validation, thresholds, reserved resources), on Linux\n" +
		"# with cgroup checks left out. Each begins with \"== answer name\"; apiVersion and kind are added."}
	for _, c := range cases[1:] {
		title, body, _ := strings.Cut(c, "\n")
		_, name, _ := strings.Cut(title, " ")
		answer := "accept"
		if err := load(body); err != nil {
			answer = "reject"
			t.Logf("%s: %v", name, err)
		}
		title = answer + " " + name
		if body != "" {
			title += "\n"
		}
		out = append(out, title+body)
	}
	compare(t, "testdata/answers.txt", strings.Split(strings.TrimSuffix(strings.Join(out, "\n== "), "\n"), "\n"))
}

// load returns the kubelet's error for a configuration, also if the kubelet panics.
func load(body string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	_, codecs, err := kubeletscheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err != nil {
		return err
	}
	obj, err := codecsDecode(codecs, []byte(head+body))
	if err != nil {
		return err
	}
	obj.FailCgroupV1 = false // do not look at this machine's cgroups
	gates := utilfeature.DefaultFeatureGate.DeepCopy()
	if err := gates.SetFromMap(obj.FeatureGates); err != nil {
		return err
	}
	if err := validation.ValidateKubeletConfiguration(obj, gates); err != nil {
		return err
	}
	if _, err := eviction.ParseThresholdConfig(obj.EnforceNodeAllocatable, obj.EvictionHard, obj.EvictionSoft,
		obj.EvictionSoftGracePeriod, obj.EvictionMinimumReclaim); err != nil {
		return err
	}
	_, err = sysctl.NewAllowlist(obj.AllowedUnsafeSysctls)
	return errors.Join(err, quantities(obj.KubeReserved), quantities(obj.SystemReserved))
}

func codecsDecode(codecs *serializer.CodecFactory, text []byte) (*kubeletconfig.KubeletConfiguration, error) {
	obj, _, err := codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	c, ok := obj.(*kubeletconfig.KubeletConfiguration)
	if !ok {
		return nil, fmt.Errorf("got %T", obj)
	}
	return c, nil
}

// quantities checks reserved resources as the start of the kubelet does.
func quantities(reserved map[string]string) error {
	for name, text := range reserved {
		switch name {
		case "cpu", "memory", "ephemeral-storage", "pid":
		default:
			return fmt.Errorf("cannot reserve %q", name)
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return err
		}
		if q.Sign() < 0 {
			return fmt.Errorf("%s is negative: %s", name, text)
		}
	}
	return nil
}
