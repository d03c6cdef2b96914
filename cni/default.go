package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
)

// hostLocal is the plugin that manages the addresses of the generated network.
const hostLocal = "host-local"

// addressesDir is the directory of host-local for the addresses of the generated network, below <root-dir>/cni.
const addressesDir = "addresses"

// ownName is the name of the generated network, and of the network in the configuration for the runtime.
const ownName = "nodelet"

// defaultConfig generates the network of a node without a configuration: the bridge with an address from each pod CIDR,
// host ports and bandwidth limits. host-local stores addresses below dir.
func defaultConfig(dir, bridge string, ranges []netip.Prefix) ([]byte, error) {
	if len(ranges) == 0 {
		return nil, errors.New("the node has no pod CIDR yet " +
			"(spec.podCIDRs of the Node object, podCIDR of the configuration)")
	}
	var sets []any
	var routes []any
	for _, r := range ranges {
		if r != r.Masked() || !usable(r) {
			return nil, fmt.Errorf("pod CIDR %s is not usable: "+
				"want a network of at least four addresses, such as 10.244.0.0/24", r)
		}
		sets = append(sets, []any{map[string]any{"subnet": r.String()}})
		to := "0.0.0.0/0"
		if r.Addr().Is6() {
			to = "::/0"
		}
		routes = append(routes, map[string]any{"dst": to})
	}
	plugins := []any{
		map[string]any{
			"type": "bridge", "bridge": bridge, "isGateway": true, "forceAddress": true, "hairpinMode": true,
			"ipam": map[string]any{
				"type":    hostLocal,
				"dataDir": filepath.Join(dir, addressesDir),
				"ranges":  sets,
				"routes":  routes,
			},
		},
		map[string]any{
			"type":         "portmap",
			"snat":         true,
			"capabilities": map[string]bool{"portMappings": true},
			"onlyIfAsked":  true,
		},
		map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}, "onlyIfAsked": true},
	}
	return json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": ownName, "plugins": plugins})
}

// usable reports whether a range has addresses for the network, the gateway, one pod and the broadcast.
func usable(r netip.Prefix) bool { return r.IsValid() && r.Addr().BitLen()-r.Bits() >= 2 }
