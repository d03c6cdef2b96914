package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// extra is the name of the additional node, which kind does not manage.
const extra = "extra"

// extraNode tests that a machine with nodelet joins a cluster whose own node runs the kubelet, runs pods, and leaves.
func (l *lab) extraNode(ctx context.Context, deb string) error {
	c, err := l.create(ctx, "host", nodeImage)
	if err != nil {
		return err
	}
	if err := c.expect(ctx, l.kubernetes, ".status.nodeInfo.kubeletVersion", "node", c.node()); err != nil {
		return err
	}
	for _, s := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"a machine that kind knows nothing of gets nodelet's package",
			func(ctx context.Context) error { return l.startMachine(ctx, deb) }},
		{"it joins by a bootstrap token, with a label and a taint", c.join},
		{"a DaemonSet and a Deployment run on it; logs, exec, services", c.work},
		{"drained, it runs only what belongs to every node", c.drain},
		{"its Node deleted, it runs nothing", c.leave},
	} {
		if err := step(s.what, func() error { return s.do(ctx) }); err != nil {
			journal, _ := l.onMachine(ctx, "journalctl -u nodelet --no-pager | tail -60; crictl pods")
			return fmt.Errorf("%w\n%s", err, journal)
		}
	}
	if _, err := l.do(ctx, "docker", "rm", "-f", "-v", extra); err != nil {
		return err
	}
	return c.delete(ctx)
}

// startMachine boots Debian with containerd on the network of kind's nodes. It is a container instead of a real
// machine. kind does not manage it, and the kubelet in its image is not started.
func (l *lab) startMachine(ctx context.Context, deb string) error {
	if _, err := l.do(ctx, "docker", "run", "-d", "-t", "--name", extra, "--hostname", extra, "--network", "kind",
		"--privileged",
		"--cgroupns=private", "--tmpfs", "/tmp", "--tmpfs", "/run", "--volume", "/var", nodeImage); err != nil {
		return err
	}
	if err := until(ctx, time.Minute,
		func() error { _, err := l.onMachine(ctx, "crictl version"); return err }); err != nil {
		return err
	}
	script, err := l.lay("join.sh")
	if err != nil {
		return err
	}
	for from, to := range map[string]string{deb: "/root/nodelet.deb", script: "/root/join.sh"} {
		if _, err := l.do(ctx, "docker", "cp", from, extra+":"+to); err != nil {
			return err
		}
	}
	// A container may not lower its OOM score.
	_, err = l.onMachine(ctx,
		`rm /usr/bin/kubelet && dpkg -i /root/nodelet.deb && mkdir -p /etc/systemd/system/nodelet.service.d &&
		printf '[Service]\nOOMScoreAdjust=0\n' > /etc/systemd/system/nodelet.service.d/container.conf &&
		systemctl daemon-reload`)
	return err
}

func (l *lab) onMachine(ctx context.Context, script string) (string, error) {
	return l.do(ctx, "docker", "exec", extra, "sh", "-euc", script)
}

// join runs the documented script. The machine reaches the API server at its internal address, not at the published
// port.
func (c *cluster) join(ctx context.Context) error {
	token, err := c.l.do(ctx, "docker", "exec", c.node(), "kubeadm", "token", "create", "--ttl=10m")
	if err != nil {
		return err
	}
	inner, err := c.l.do(ctx, "kind", "get", "kubeconfig", "--internal", "--name", c.name)
	if err != nil {
		return err
	}
	file := filepath.Join(c.l.dir, "internal")
	if err := os.WriteFile(file, []byte(inner), 0o600); err != nil {
		return err
	}
	if _, err := c.l.do(ctx, "docker", "cp", file, extra+":/root/admin.conf"); err != nil {
		return err
	}
	if _, err := c.l.onMachine(ctx, "sh /root/join.sh /root/admin.conf "+strings.TrimSpace(token)+
		" example.org/place=edge example.org/edge=only:NoSchedule"); err != nil {
		return err
	}
	if err := until(ctx, time.Minute,
		func() error { _, err := c.kubectl(ctx, "get", "node", extra); return err }); err != nil {
		return err
	}
	if err := c.wait(ctx, "condition=Ready", "node", extra); err != nil {
		return err
	}
	return errors.Join(c.runBy(ctx, extra, "+nodelet."),
		c.expect(ctx, "edge", `.metadata.labels.example\.org/place`, "node", extra),
		c.expect(ctx, "only", `.spec.taints[?(@.key=="example.org/edge")].value`, "node", extra))
}

// work tests pods on the additional node.
func (c *cluster) work(ctx context.Context) error {
	if err := c.apply(ctx, "edge.yaml"); err != nil {
		return err
	}
	if err := c.rolledOut(ctx, "default", "deployment/edge", "daemonset/everywhere"); err != nil {
		return err
	}
	if err := c.expect(ctx, extra+" "+extra, ".items[*].spec.nodeName", "pods", "-l", "app=edge"); err != nil {
		return err
	}
	if err := c.expect(ctx, "2", ".status.numberReady", "daemonset", "everywhere"); err != nil {
		return err
	}
	return c.talk(ctx, "edge", "Started HTTP server on port 8080")
}

func (c *cluster) drain(ctx context.Context) error {
	if _, err := c.kubectl(ctx, "drain", extra, "--ignore-daemonsets", "--delete-emptydir-data",
		"--timeout="+timeout.String()); err != nil {
		return err
	}
	return c.sandboxes(ctx, "everywhere", "flannel", "kube-proxy")
}

// leave deletes the Node. Its pods are deleted with it, also those of DaemonSets.
func (c *cluster) leave(ctx context.Context) error {
	if _, err := c.kubectl(ctx, "delete", "node", extra); err != nil {
		return err
	}
	if err := c.sandboxes(ctx); err != nil {
		return err
	}
	if _, err := c.l.onMachine(ctx, "systemctl disable --now nodelet"); err != nil {
		return err
	}
	left, err := c.l.onMachine(ctx,
		"ls -A /var/lib/kubelet/pods /var/log/pods; findmnt -rno TARGET | grep ^/var/lib/kubelet || true")
	if err == nil && strings.TrimSpace(left) != "/var/lib/kubelet/pods:\n\n/var/log/pods:" {
		err = fmt.Errorf("the machine still has: %s", left)
	}
	if err != nil {
		return err
	}
	return c.expect(ctx, c.node(), ".items[*].metadata.name", "nodes")
}

// sandboxes waits until the runtime of the additional node has the sandboxes of these apps only.
func (c *cluster) sandboxes(ctx context.Context, apps ...string) error {
	return until(ctx, timeout, func() error {
		out, err := c.l.onMachine(ctx,
			`crictl pods -o json | jq -r '[.items[].metadata.name | sub("-[a-z0-9]*$"; "")] | sort | join(" ")'`)
		if err == nil && strings.TrimSpace(out) != strings.Join(apps, " ") {
			err = fmt.Errorf("pods on the machine: got %q, want %v", strings.TrimSpace(out), apps)
		}
		return err
	})
}
