package endpoints

import (
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/config"
)

// Settings returns what Mounts needs of the configuration. The caller adds Healthz, Configuration, Logs and
// Verbosity.
func Settings(c *config.Config) Config {
	k := &c.Kubelet
	return Config{
		SystemLogs:     *k.EnableSystemLogHandler,
		SystemLogQuery: ptr.Deref(k.EnableSystemLogQuery, false),
		DebugFlags:     *k.EnableDebugFlagsHandler,
		Profiling:      *k.EnableProfilingHandler,
		Flagz:          *k.EnableDebuggingHandlers && c.Gate("ComponentFlagz"),
		Flags:          c.Flags,
		Statusz:        *k.EnableDebuggingHandlers && c.Gate("ComponentStatusz"),
		Version:        config.KubeletVersion(),
	}
}
