package manager

import (
	"path/filepath"

	"github.com/nodelet/nodelet/config"
)

// Settings returns what a Manager needs of the configuration. The caller adds the runtime, the functions and the log.
func Settings(c *config.Config) Config {
	n := c.Network
	return Config{
		Mode:          n.Mode,
		Dir:           filepath.Join(c.Paths.Root, "cni"),
		ConfDir:       n.ConfDir,
		BinDirs:       n.BinDirs,
		Conf:          n.Conf,
		NetworksDir:   n.NetworksDir,
		PodCIDRs:      n.PodCIDRs,
		NonMasquerade: n.NonMasquerade,
		CallTimeout:   n.CallTimeout,
		CheckPeriod:   n.CheckPeriod,
	}
}
