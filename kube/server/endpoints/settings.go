package endpoints

import "github.com/nodelet/nodelet/config"

// Settings returns what Mounts needs of the configuration. The caller adds Healthz, Logs and Verbosity.
func Settings(c *config.Config) Config {
	s := c.Server
	return Config{
		Configuration:  c.Kubelet.Masked(),
		SystemLogs:     s.SystemLogs,
		SystemLogQuery: s.SystemLogsQuery,
		DebugFlags:     s.DebugFlags,
		Profiling:      s.Profiling,
		Flagz:          s.DebugHandlers && c.Gate("ComponentFlagz"),
		Flags:          c.Flags,
		Statusz:        s.DebugHandlers && c.Gate("ComponentStatusz"),
		Version:        config.KubeletVersion(),
	}
}
