package usage

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func TestAccountedIn(t *testing.T) {
	const unit = "/system.slice/kubelet.service"
	for text, want := range map[string]string{
		"0::" + unit + "\n": unit,
		"5:memory:" + unit + "\n3:cpu,cpuacct:" + unit + "\n0::/x\n":          unit,
		"5:memory:/a\n3:cpu,cpuacct:/b\n0::/a\n":                              "",
		"5:memory:/\n3:cpu:/\n1:name=systemd:/system.slice/kubelet.service\n": "",
		"0::/\n":         "",
		"0::/../other\n": "",
		"":               "",
	} {
		path := filepath.Join(t.TempDir(), "cgroup")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := accountedIn(path); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestSystemContainers checks that the agent and the runtime are reported beside the cgroup of the pods, each with a
// rate in the first response, and that one whose cgroup does not exist is missing.
func TestSystemContainers(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, v2 bool) {
		for _, dir := range []string{"system.slice/agent", "system.slice/runtime", "system.slice/rest"} {
			files := v1Files(dir)
			if v2 {
				files = v2Files(dir)
			}
			tree(t, w.cfg.Hierarchy.unified, files)
		}
		w.cfg.AgentCgroup, w.cfg.RuntimeCgroup = "/system.slice/agent", "/system.slice/runtime"
		w.cfg.SystemCgroup = "/system.slice/rest"
		names := func() (names []string) {
			s, err := w.Summary(t.Context(), Plain)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range s.Node.SystemContainers {
				names = append(names, one.Name)
				if v2 && !waited(&one) {
					t.Errorf("%s: got no pressure: %+v", one.Name, one)
				}
				if one.CPU == nil || one.CPU.UsageNanoCores == nil || *one.Memory.WorkingSetBytes != 600000 {
					t.Errorf("values of %s: got %+v, want its usage", one.Name, one)
				}
			}
			return names
		}
		want := []string{api.SystemContainerKubelet, api.SystemContainerRuntime, api.SystemContainerMisc,
			api.SystemContainerPods}
		if got := names(); !slices.Equal(got, want) {
			t.Errorf("system containers: got %v, want %v", got, want)
		}
		agent := `container_memory_working_set_bytes{container="",id="/system.slice/agent",image="",name="",namespace="",` +
			`pod=""} 600000`
		if text := w.text(w.WriteCadvisor); !strings.Contains(text, agent) {
			t.Errorf("got no line of the agent's cgroup, want it in:\n%s", text)
		}
		w.cfg.RuntimeCgroup = "/system.slice/gone"
		w.cfg.SystemCgroup = ""
		if got := names(); !slices.Equal(got, []string{api.SystemContainerKubelet, api.SystemContainerPods}) {
			t.Errorf("system containers: got %v, want the kubelet and the pods", got)
		}
	})
}

// waited reports whether the pressure of a cgroup of v2Files is in its statistics, in nanoseconds as the kubelet has
// it.
func waited(s *api.ContainerStats) bool {
	return s.CPU.PSI != nil && s.Memory.PSI != nil && s.IO != nil && s.IO.PSI != nil &&
		s.CPU.PSI.Some.Total == 3e6 && s.Memory.PSI.Full.Total == 2e3 && s.IO.PSI.Some.Avg10 == 1
}
