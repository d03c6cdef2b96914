package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const roleFlannel = "flannel"

// StartFlannel starts Flannel's daemon on the node and waits until it has written the node's subnet file. It returns
// the values of FLANNEL_SUBNET and FLANNEL_MTU. The caller writes the CNI configuration, because the daemon does not.
func (n *Node) StartFlannel(ctx context.Context) (subnet, mtu string, err error) {
	dir, err := n.tb.cache.Programs(ctx, "flannel")
	if err != nil {
		return "", "", err
	}
	config, found := filepath.Join(n.dir, "flannel.json"), filepath.Join(n.dir, "flannel.env")
	text := fmt.Sprintf(`{"Network": %q, "Backend": {"Type": "vxlan"}}`, podCIDR)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return "", "", err
	}
	err = n.tb.launch(n.role(roleFlannel), launch{netns: n.Netns, dir: n.dir, env: append(n.tb.Env(), "NODE_NAME="+n.Name),
		argv: []string{filepath.Join(dir, "flannel"), "-kube-subnet-mgr", "-kubeconfig-file=" + n.tb.Kubeconfig,
			"-iface=eth0",
			"-net-config-path=" + config, "-subnet-file=" + found}})
	if err != nil {
		return "", "", err
	}
	err = n.tb.await(ctx, n.role(roleFlannel), startLimit, func(context.Context) error {
		text, err := os.ReadFile(found)
		for line := range strings.Lines(string(text)) {
			switch k, v, _ := strings.Cut(strings.TrimSpace(line), "="); k {
			case "FLANNEL_SUBNET":
				subnet = v
			case "FLANNEL_MTU":
				mtu = v
			}
		}
		if err == nil && (subnet == "" || mtu == "") {
			err = fmt.Errorf("read %s: no FLANNEL_SUBNET or no FLANNEL_MTU", found)
		}
		return err
	})
	return subnet, mtu, err
}
