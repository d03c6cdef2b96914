package usage

import (
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// system is a cgroup of the node that does not belong to one pod.
type system struct{ name, cgroup string }

// systems returns the system containers with their names in /stats/summary. That of the agent has the kubelet's name,
// so that monitoring of the kubelet works with nodelet.
func (c *Collector) systems() (all []system) {
	for _, s := range []system{
		{api.SystemContainerKubelet, c.cfg.AgentCgroup}, {api.SystemContainerRuntime, c.cfg.RuntimeCgroup},
		{api.SystemContainerMisc, c.cfg.SystemCgroup}, {api.SystemContainerPods, c.cfg.PodsCgroup},
	} {
		if s.cgroup != "" {
			all = append(all, s)
		}
	}
	return all
}

// ownCgroup returns the cgroup that accounts for this process; empty if it is not known.
func ownCgroup() string { return accountedIn("/proc/self/cgroup") }

// accountedIn reads the cgroup of a process from /proc/PID/cgroup. It returns an empty string for the root, which is
// the whole machine, and for two different cgroups of CPU and memory.
func accountedIn(path string) string {
	in, err := cgroups.ParseCgroupFile(path) // by controller, "" for cgroup v2
	if err != nil {
		return ""
	}
	own, v1 := in["memory"]
	if !v1 {
		own = in[""]
	} else if in["cpu"] != own {
		return ""
	}
	if own == "/" || strings.HasPrefix(own, "/..") { // "/..": outside the cgroup namespace of this process
		return ""
	}
	return own
}

// bootTime returns when the machine has booted; zero if that is unknown.
func bootTime() time.Time {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(s.Uptime) * time.Second).Truncate(time.Second)
}
