package usage

import (
	"bytes"
	"fmt"
	"strings"
)

// Interface is what a network interface has carried since it was made.
type Interface struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// interfacesOf reads the interfaces of the network namespace that a process lives in; 0 is the agent's own.
func interfacesOf(pid int) (all []Interface) {
	path := "/proc/self/net/dev"
	if pid != 0 {
		path = fmt.Sprintf("/proc/%d/net/dev", pid)
	}
	_ = withFile(path, func(text []byte) { all = parseNetDev(text) })
	return all
}

// parseNetDev takes /proc/PID/net/dev: two lines of heads, then "eth0: " and sixteen numbers a line. Interfaces that
// only lead to others of the node are left out, as the kubelet's reports do.
func parseNetDev(text []byte) (all []Interface) {
	for line := range bytes.Lines(text) {
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
	for _, prefix := range []string{"lo", "veth", "docker", "nerdctl"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == ""
}
