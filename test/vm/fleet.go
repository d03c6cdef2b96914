package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/nodelet/nodelet/test/testbed"
)

// fleet is what is proved of packaging/rollout: from the first machine, with kubectl and ssh, an operator replaces the
// kubelet of the second one by nodelet and restores it, with the script and with Ansible. The pod of the second machine
// runs all the time, in the same container.
type fleet struct{ *cluster }

// fleetFiles are those of a cluster, the real kubelet, and packaging/rollout.
func fleetFiles(ctx context.Context, cache *testbed.Cache, dir string) ([]string, error) {
	kubelet, err := cache.Program(ctx, "kubernetes", "kubelet")
	if err != nil {
		return nil, err
	}
	tools := filepath.Join(dir, "rollout.tgz")
	if err := run(ctx, "", "tar", "-C", "packaging", "-czf", tools, "rollout"); err != nil {
		return nil, err
	}
	files, err := clusterFiles(ctx, cache)
	return append(files, kubelet, tools), err
}

func (f *fleet) prove() error {
	const (
		script   = "./nodelet-rollout take-over --package=/payload/nodelet.deb --watch=20 two"
		playbook = "cd ansible && ansible-playbook -i two, rollout.yaml -e ansible_user=root -e nodelet_watch=20 "
	)
	return f.inOrder([]step{
		{"boot two machines", f.boot},
		{"install nodelet and the kubelet", f.install},
		{"kubeadm init", f.init},
		{"kubeadm join with the kubelet", f.join},
		{"a pod on the node that joined", f.podOnTwo},
		{"ssh from one machine to the other", f.connect},
		{"the script takes over", f.does(script, true)},
		{"the script upgrades", f.does(script, true)},
		{"the script rolls back", f.does("./nodelet-rollout roll-back two", false)},
		{"a takeover that fails restores the kubelet", f.fails(script)},
		{"Ansible takes over", f.does(playbook+"-e nodelet_package=/payload/nodelet.deb", true)},
		{"Ansible upgrades", f.does(playbook+"-e nodelet_package=/payload/nodelet.deb", true)},
		{"Ansible rolls back", f.does(playbook+"-e nodelet_state=kubelet", false)},
		{"a playbook that fails restores the kubelet", f.fails(playbook + "-e nodelet_package=/payload/nodelet.deb")},
	})
}

// install makes the first machine one that nodelet runs, and the second one that the kubelet runs.
func (f *fleet) install() error {
	return cmp.Or(f.installOn(f.one), f.two.need(
		"cp /payload/kubelet /usr/bin/kubelet && cp /payload/kubelet.service /etc/systemd/system/kubelet.service",
		installKubeadm, "systemctl daemon-reload && systemctl enable -q kubelet"))
}

func (f *fleet) join() error {
	return cmp.Or(f.joinTwo(), f.one.need(kubectlOne+"wait --for=create node/two --timeout=120s",
		kubectlOne+"wait --for=condition=Ready node/two --timeout=120s"), f.isAgent(false))
}

// connect gives the operator on the first machine a key for the second.
func (f *fleet) connect() error {
	err := f.one.need("echo '" + addrTwo + " two' >> /etc/hosts && mkdir -p -m 700 /root/.ssh && " +
		"ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 && " +
		"printf 'StrictHostKeyChecking accept-new\n' > /root/.ssh/config && tar -C /root -xzf /payload/rollout.tgz")
	if err != nil {
		return err
	}
	key, err := f.one.sh("cat /root/.ssh/id_ed25519.pub")
	if err != nil {
		return err
	}
	return cmp.Or(f.two.need("mkdir -p -m 700 /root/.ssh && echo '"+key+"' > /root/.ssh/authorized_keys && "+
		"systemctl start ssh"), f.one.need(poll(30, "1", "ssh -o BatchMode=yes two true", ":")))
}

// isAgent checks which agent the cluster shows for the second machine.
func (f *fleet) isAgent(nodelet bool) error {
	version, err := f.one.sh(kubectlOne + "get node two -o jsonpath='{.status.nodeInfo.kubeletVersion}'")
	if err != nil || strings.Contains(version, "+nodelet.") != nodelet {
		return fmt.Errorf("agent of node two: got %q, want nodelet: %t, error %v", version, nodelet, err)
	}
	return nil
}

// web returns the container of the pod on the second machine.
func (f *fleet) web() (string, error) {
	return f.one.sh(kubectlOne + "get pod web -o " +
		"jsonpath='{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}'")
}

// operator runs a command in the directory of the tools, and returns its exit code. The pod keeps its container.
func (f *fleet) operator(command string) (code string, err error) {
	before, err := f.web()
	if err != nil {
		return "", err
	}
	out, err := f.one.sh("cd /root/rollout; export KUBECONFIG=/etc/kubernetes/admin.conf HOME=/root LC_ALL=C.UTF-8; "+
		"(%s) 2>&1; echo exit code $?", command)
	fmt.Println(indented(out))
	if err != nil {
		return "", err
	}
	after, err := f.web()
	if err != nil || after != before {
		return "", fmt.Errorf("container of pod web: got %q, want %q, error %v", after, before, err)
	}
	_, code, _ = strings.Cut(out, "exit code ")
	return code, nil
}

// does is a command that succeeds and leaves this agent on the second machine.
func (f *fleet) does(command string, nodelet bool) func() error {
	return func() error {
		if code, err := f.operator(command); err != nil || code != "0" {
			return fmt.Errorf("%s: exit code %q, error %v", command, code, err)
		}
		return f.isAgent(nodelet)
	}
}

// fails is a command that cannot succeed, because another process holds the lock of nodelet's root directory, and that
// leaves the kubelet on the second machine.
func (f *fleet) fails(command string) func() error {
	return func() error {
		const lock = "/var/lib/kubelet/nodelet.lock"
		err := f.two.need("systemd-run -q --unit=holder flock "+lock+" sleep infinity",
			poll(30, "0.2", "! flock -n "+lock+" true", ":"))
		if err != nil {
			return err
		}
		short := strings.NewReplacer("--watch=20", "--watch=20 --wait=20s", "nodelet_watch=20",
			"nodelet_watch=20 -e nodelet_wait=20s").Replace(command)
		code, err := f.operator(short)
		if err == nil && (code == "0" || code == "") {
			err = fmt.Errorf("%s: exit code %q, want another than 0", short, code)
		}
		return cmp.Or(err, f.isAgent(false), f.two.need("systemctl stop holder", "systemctl is-active kubelet"))
	}
}
