package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// newUMLCluster makes two machines of User-Mode Linux, which linkUML joins.
func newUMLCluster(p *parts, dir, payload string) ([]box, error) {
	var machines []box
	for _, name := range []string{"one", "two"} {
		m := &umlMachine{kernel: p.kernel, disk: p.disk, dir: filepath.Join(dir, name), payload: payload, name: name,
			memory: "3G"} // kubeadm wants 1,700 MB, and what is proved of the first needs a control plane's
		if err := os.Mkdir(m.dir, 0o755); err != nil {
			return nil, err
		}
		machines = append(machines, m)
	}
	return machines, nil
}

// linkUML joins the networks of two machines by a bridge beside the first one, and gives the second its address: all
// machines boot with that of the first. A machine that boots again, as a process that goes on, keeps its link.
func linkUML(a, b *umlMachine) error {
	const limit = time.Minute
	if _, err := a.outside(limit, "ip link show cable"); err == nil {
		return nil
	}
	pid, err := a.inside()
	if err != nil {
		return err
	}
	for _, m := range []*umlMachine{a, b} {
		if _, err := m.sh(limit, "echo 127.0.0.1 localhost $(hostname) > /etc/hosts"); err != nil {
			return err
		}
	}
	if _, err := b.sh(limit, "ip addr flush dev vec0 && ip addr add "+addrTwo+"/24 dev vec0 && "+
		"ip route add default via 192.0.2.1 dev vec0"); err != nil {
		return err
	}
	if _, err := b.outside(limit, fmt.Sprintf("ip link set outside netns %d name far", pid)); err != nil {
		return err
	}
	_, err = a.outside(limit, "ip link add cable type bridge && ip addr flush dev outside && "+
		"for d in outside far; do ip link set $d master cable up || exit 1; done && ip link set cable up")
	return err
}
