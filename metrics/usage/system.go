package usage

import (
	"os"
	"strings"

	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// system is a cgroup that serves the node rather than one pod.
type system struct{ name, cgroup string }

// systems are the system containers, by the names that /stats/summary has for them. The agent's is named as the
// kubelet's: who watches the one will watch the other.
func (c *Collector) systems() (all []system) {
	for _, s := range []system{
		{api.SystemContainerKubelet, c.cfg.AgentCgroup}, {api.SystemContainerRuntime, c.cfg.RuntimeCgroup},
		{api.SystemContainerPods, c.cfg.PodsCgroup},
	} {
		if s.cgroup != "" {
			all = append(all, s)
		}
	}
	return all
}

// OwnCgroup is where this process is accounted for, empty where that cannot be told.
func OwnCgroup() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	return accountedIn(string(text))
}

// accountedIn reads what the kernel says of a process's cgroups. The root is no answer, for it is the machine, and
// neither are two cgroups, one for the CPU and one for memory.
func accountedIn(text string) string {
	in := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		parts := strings.SplitN(line, ":", 3) // number, controllers, cgroup
		if len(parts) < 3 {
			continue
		}
		for _, c := range strings.Split(parts[1], ",") {
			in[c] = parts[2]
		}
	}
	own, v1 := in["memory"]
	if !v1 {
		own = in[""]
	} else if in["cpu"] != own {
		return ""
	}
	if own == "/" || strings.HasPrefix(own, "/..") { // the latter is outside of this process's cgroup namespace
		return ""
	}
	return own
}
