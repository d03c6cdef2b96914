package usage

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Interface has the counters of a network interface since its creation.
type Interface struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// maxInterfaces is how many interfaces of a network namespace are reported. A container may make any number, and each
// has eight lines in /metrics/cadvisor.
const maxInterfaces = 4096

// interfacesOf reads the interfaces in the network namespace of a process; 0 is the agent itself.
func interfacesOf(pid int) (all []Interface) {
	path := "/proc/self/net/dev"
	if pid != 0 {
		path = fmt.Sprintf("/proc/%d/net/dev", pid)
	}
	withFile(path, func(text []byte) { all = parseNetDev(text) })
	return all
}

// parseNetDev parses /proc/PID/net/dev: two header lines, then "eth0: " and sixteen numbers per line. Like the
// kubelet it skips interfaces that only connect to others of the node.
func parseNetDev(text []byte) (all []Interface) {
	for line := range bytes.Lines(text) {
		if len(all) == maxInterfaces {
			break
		}
		name, numbers, ok := bytes.Cut(line, []byte{':'})
		fields := bytes.Fields(numbers)
		if !ok || len(fields) < 12 || ignoredInterface(string(bytes.TrimSpace(name))) {
			continue
		}
		var v [12]uint64
		for i := range v {
			v[i], _ = parseUint(fields[i])
		}
		all = append(all, Interface{
			Name:    string(bytes.TrimSpace(name)),
			RxBytes: v[0], RxPackets: v[1], RxErrors: v[2], RxDropped: v[3],
			TxBytes: v[8], TxPackets: v[9], TxErrors: v[10], TxDropped: v[11],
		})
	}
	return all
}

func ignoredInterface(name string) bool {
	ignored := []string{"lo", "veth", "docker", "nerdctl"}
	return name == "" || slices.ContainsFunc(ignored, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
