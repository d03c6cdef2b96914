package placement

import (
	"fmt"
	"io/fs"

	"github.com/nodelet/nodelet/host/topology"
)

// Open reads the machine from root, which is /, and returns a Manager for it. It sets cfg.Machine. With all policies
// off it reads the machine only to check that the reserved CPUs are online.
func Open(root fs.FS, cfg Config) (*Manager, error) {
	s := &cfg.Settings
	if !s.off() || !s.ReservedCPUs.IsEmpty() {
		var err error
		if cfg.Machine, err = topology.Read(root); err != nil {
			return nil, fmt.Errorf("read the CPUs of the machine: %w", err)
		}
		if online := cfg.Machine.Online(); !s.ReservedCPUs.IsSubsetOf(online) {
			return nil, fmt.Errorf("reservedSystemCPUs: CPUs %s are not online; online are %s",
				s.ReservedCPUs.Difference(online), online)
		}
	}
	return New(cfg)
}
