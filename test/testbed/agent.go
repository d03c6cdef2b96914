package testbed

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// StartAgent starts an agent on the node. It is an error if one runs already. It does not wait; see WaitReady. Both
// kinds get the same files and flags, so that one can take over the node from the other.
func (n *Node) StartAgent(ctx context.Context, kind AgentKind) error {
	var program string
	switch kind {
	case Kubelet:
		var err error
		if program, err = n.tb.Kubelet(ctx); err != nil {
			return err
		}
	case Nodelet:
		program = n.tb.opts.NodeletBin
	default:
		return fmt.Errorf("start agent of node %s: no program for kind %q", n.Name, kind)
	}
	argv := []string{
		program,
		"--config=" + n.ConfigFile,
		"--root-dir=" + n.RootDir,
		"--cert-dir=" + filepath.Join(n.RootDir, "pki"),
		"--hostname-override=" + n.Name,
		"--node-ip=" + n.tb.both(n.IP, address6(n.tb.x, 10+n.index)),
		"-v=2",
	}
	if !n.tb.opts.Shape.standalone() { // such a node has the network and the pod CIDR that nodelet chooses by default
		argv = append(argv, "--kubeconfig="+n.Kubeconfig)
		if kind == Nodelet && n.tb.opts.Network == "agent" {
			argv = append(argv, "--network=agent")
			if n.tb.opts.Runtime == "crio" { // unlike containerd, CRI-O does not say where they are
				argv = append(argv, "--cni-conf-dir="+n.CNIConfDir, "--cni-bin-dir="+n.CNIBinDir)
			}
		}
	}
	argv = append(argv, n.tb.opts.AgentArgs...)
	if kind == Kubelet {
		var err error
		if argv, err = n.asUsual(ctx, argv); err != nil {
			return err
		}
	}
	return n.tb.launch(
		n.role(roleAgent),
		launch{netns: n.Netns, mntns: n.mountNS(), dir: n.dir, env: n.tb.Env(), argv: argv},
	)
}

// Kubelet builds the kubelet if it is missing, and returns its path.
func (tb *Testbed) Kubelet(ctx context.Context) (string, error) {
	return tb.cache.Program(ctx, tb.opts.kubernetesModule(), "kubelet")
}

// SetNodelet sets the path of the nodelet binary for agents that this process starts from now on.
func (tb *Testbed) SetNodelet(program string) { tb.opts.NodeletBin = program }

// StopAgent sends the signal to the node's agent and waits until it exits. After 20 seconds it kills the agent. It is
// no error if no agent runs. Pods keep running.
func (n *Node) StopAgent(sig unix.Signal) error {
	return n.tb.stopRole(n.role(roleAgent), sig, 20*time.Second)
}

// AgentPID returns the process ID of the node's agent, or 0 if none runs.
func (n *Node) AgentPID() int { return n.pid(roleAgent) }

func (n *Node) pid(role string) int {
	p, err := n.tb.proc(n.role(role))
	if err != nil || !p.Alive() {
		return 0
	}
	return p.PID
}

// AgentLog returns the path of the agent's log. All agents of a node append to the same file.
func (n *Node) AgentLog() string { return n.tb.log(n.role(roleAgent)) }

// WaitReady waits until the Node object exists and is Ready. After limit it returns an error.
func (n *Node) WaitReady(ctx context.Context, limit time.Duration) error {
	began := time.Now()
	if err := n.waitFor(ctx, limit, "create"); err != nil {
		return err
	}
	return n.waitFor(ctx, max(time.Second, limit-time.Since(began)), "condition=Ready")
}

// waitFor waits with "kubectl wait", which uses a watch.
func (n *Node) waitFor(ctx context.Context, limit time.Duration, what string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.tb.mu.Lock()
	agent := n.tb.children[n.role(roleAgent)]
	n.tb.mu.Unlock()
	if agent != nil {
		go func() { // do not wait for an agent that has exited
			select {
			case <-agent.done:
				cancel(fmt.Errorf("the agent has exited"))
			case <-ctx.Done():
			}
		}()
	}
	_, err := n.tb.Kubectl(ctx, "wait", "--for="+what, "node/"+n.Name, fmt.Sprintf("--timeout=%.0fs", limit.Seconds()))
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("wait for %s of node %s: %w\n%s", what, n.Name, err, tail(n.AgentLog(), 20))
	}
	return nil
}

func (n *Node) startKubeProxy() error {
	return n.tb.launch(n.role(roleProxy), launch{
		netns: n.Netns,
		dir:   n.dir,
		argv: []string{
			filepath.Join(n.tb.bins.kubernetes, "kube-proxy"),
			"--kubeconfig=" + n.tb.kubeconfig("kube-proxy"),
			"--hostname-override=" + n.Name,
			"--cluster-cidr=" + n.tb.both(podCIDR, podCIDR6),
			"--proxy-mode=" + cmp.Or(n.tb.opts.ProxyMode, "iptables"),
			"--conntrack-max-per-core=0", // do not change this limit of the whole machine
		},
	})
}
