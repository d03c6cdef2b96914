package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodelet/nodelet/test/testbed"
)

// Addresses of the cluster's machines on their cable.
const addrOne, addrTwo = "192.0.2.10", "192.0.2.11"

// kubectlOne runs kubectl as the cluster's administrator, in its first machine.
const kubectlOne = "kubectl --kubeconfig=/etc/kubernetes/admin.conf "

var controlPlane = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// cluster is what is proved of kubeadm, in order: one makes a cluster, two joins it.
type cluster struct {
	ctx      context.Context
	one, two *scenario
	ignore   []string // kubeadm's preflight checks that these machines cannot pass, and nothing else
	version  string
}

func newCluster(ctx context.Context, machines []box, skip *regexp.Regexp) *cluster {
	began := time.Now()
	return &cluster{
		ctx: ctx,
		one: &scenario{m: machines[0], began: began, skip: skip},
		two: &scenario{m: machines[1], began: began, images: "{pause,busybox,kubeadm1-pause}-*"}, // no control plane
	}
}

// prove proves kubeadm's commands.
func (c *cluster) prove() error {
	return c.inOrder([]step{
		{"boot two machines", c.boot}, {"install nodelet as the kubelet", c.install}, {"kubeadm init", c.init},
		{"what init left", c.afterInit},
		{"the control plane's pods", c.controlPlaneRuns}, {"kubeadm join", c.join},
		{"a pod on the node that joined", c.podOnTwo},
		{"kubeadm upgrade", c.upgrade}, {"reboot of the control plane", c.reboot},
		{"kubeadm reset and join again", c.joinAgain},
		{"kubeadm reset of the control plane", c.resetOne}, {"remove the package", c.remove},
	})
}

// inOrder runs steps until one fails; of a failure it prints what helps to understand it.
func (c *cluster) inOrder(steps []step) error {
	err := c.one.inOrder(steps)
	if err != nil && c.version != "" { // both have booted
		c.show()
	}
	return err
}

func (c *cluster) show() {
	for name, s := range map[string]*scenario{"one": c.one, "two": c.two} {
		for _, q := range []string{"journalctl --no-pager -n 60 -u kubelet", "systemctl status --no-pager kubelet",
			"crictl ps -a; crictl pods",
			kubectlOne + "get nodes,pods,csr -A -o wide; " + kubectlOne + "get events -A | tail -20"} {
			out, err := s.m.sh(time.Minute, q)
			fmt.Printf("--- %s: %s (%v)\n%s\n", name, q, err, out)
		}
	}
}

func (c *cluster) boot() error {
	var furnished errgroup.Group
	for _, s := range []*scenario{c.one, c.two} {
		if err := s.m.start(bootLimit); err != nil { // by the thread that they must not outlive
			return errors.Join(err, furnished.Wait())
		}
		furnished.Go(s.runtime)
	}
	if err := furnished.Wait(); err != nil {
		return err
	}
	cache, err := testbed.OpenCache(nil)
	if err != nil {
		return err
	}
	if c.version, err = cache.KubernetesVersion(); err != nil {
		return err
	}
	if c.one.need("test -e /sys/fs/cgroup/cgroup.controllers") != nil {
		c.ignore = append(c.ignore, "SystemVerification")
		c.one.say("this machine's kernel has cgroup v1, which kubeadm's check SystemVerification refuses: it is left out")
	}
	return c.link()
}

// link joins the machines by a cable.
func (c *cluster) link() error {
	if one, ok := c.one.m.(*umlMachine); ok {
		return linkUML(one, c.two.m.(*umlMachine))
	}
	return link(c.ctx, c.one.m.(*nsMachine), addrOne, c.two.m.(*nsMachine), addrTwo)
}

// installKubeadm is kubeadm with the drop-in of its own package.
const installKubeadm = "cp /payload/kubeadm /payload/kubectl /usr/bin/ && " +
	"install -D -m 644 /payload/10-kubeadm.conf /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"

func (c *cluster) install() error { return cmp.Or(c.installOn(c.one), c.installOn(c.two)) }

// installOn does what a user does: two packages, and kubeadm. No file is edited.
func (c *cluster) installOn(s *scenario) error {
	err := s.need(installKubeadm,
		"dpkg -i /payload/nodelet.deb /payload/nodelet-kubelet.deb", "systemctl is-enabled -q kubelet",
		"! systemctl is-active -q kubelet",
		"dpkg -s nodelet-kubelet | grep -q '^Provides: kubelet'")
	if err != nil {
		return err
	}
	out, err := s.sh("kubelet --version")
	if err != nil || !strings.HasPrefix(out, "Kubernetes "+c.version+"+nodelet") {
		return fmt.Errorf("kubelet --version says %q, error %v", out, err)
	}
	return nil
}

// ignoring is kubeadm's flag for checks that are left out here.
func (c *cluster) ignoring(more ...string) string {
	if all := append(slices.Clone(c.ignore), more...); len(all) > 0 {
		return " --ignore-preflight-errors=" + strings.Join(all, ",")
	}
	return ""
}

// warnings prints what kubeadm warned of.
func (c *cluster) warnings(out string) {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "WARNING") {
			c.one.say("kubeadm: %s", strings.TrimSpace(line))
		}
	}
}

func (c *cluster) init() error {
	out, err := c.one.sh("sed 's/VERSION/%s/' /payload/kubeadm.yaml > /root/kubeadm.yaml "+
		"&& kubeadm init --config=/root/kubeadm.yaml%s 2>&1", c.version, c.ignoring())
	if err != nil {
		return err
	}
	c.warnings(out)
	return nil
}

// afterInit: nodelet runs with kubeadm's flags and files, with a certificate that rotates.
func (c *cluster) afterInit() error {
	if err := c.isNodelet(c.one, "--config=/var/lib/kubelet/config.yaml", "--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--node-labels=example.org/asked=by-kubeadm"); err != nil {
		return err
	}
	if err := c.one.need("grep -q 'node-labels' /var/lib/kubelet/kubeadm-flags.env",
		"grep -q kubelet-client-current.pem /etc/kubernetes/kubelet.conf",
		"test -L /var/lib/kubelet/pki/kubelet-client-current.pem",
		"grep -q 'cgroupDriver: systemd' /var/lib/kubelet/config.yaml"); err != nil {
		return err
	}
	return c.ready("one")
}

// isNodelet: the main process of kubelet.service is nodelet, with these arguments.
func (c *cluster) isNodelet(s *scenario, args ...string) error {
	exe, err := s.sh("systemctl is-active -q kubelet && readlink /proc/$(systemctl show -p MainPID --value kubelet)/exe")
	if err != nil || exe != "/usr/bin/nodelet" {
		return fmt.Errorf("kubelet.service runs %q, error %v", exe, err)
	}
	line, err := s.sh("tr '\\0' '\\n' < /proc/$(systemctl show -p MainPID --value kubelet)/cmdline")
	if err != nil {
		return err
	}
	for _, a := range args {
		if !slices.Contains(strings.Fields(line), a) {
			return fmt.Errorf("kubelet.service lacks the argument %s: %q", a, line)
		}
	}
	return nil
}

// ready waits until the node is Ready and says that nodelet is its agent.
func (c *cluster) ready(node string) error {
	version, err := c.one.sh(kubectlOne+"wait --for=condition=Ready node/%[1]s --timeout=120s >&2 && "+kubectlOne+
		"get node %[1]s -o jsonpath='{.status.nodeInfo.kubeletVersion}'", node)
	if err != nil || !strings.Contains(version, c.version+"+nodelet") {
		return fmt.Errorf("node %s: agent %q, error %v", node, version, err)
	}
	return nil
}

// burstableSlice is the cgroup of a container of a burstable pod, with the systemd driver.
var burstableSlice = regexp.MustCompile(`/kubepods\.slice/kubepods-burstable\.slice/` +
	`kubepods-burstable-pod[0-9a-f_]+\.slice/cri-containerd-[0-9a-f]+\.scope`)

// controlPlaneRuns checks that each static pod has a mirror pod, is Ready, and runs in its slice.
func (c *cluster) controlPlaneRuns() error {
	for _, name := range controlPlane {
		if err := c.one.need(kubectlOne + "-n kube-system wait --for=condition=Ready pod/" + name +
			"-one --timeout=180s"); err != nil {
			return err
		}
		// After a reboot the API server shows the old status until the agent has sent the new one.
		group, err := c.one.sh("for i in $(seq 300); do id=$(crictl ps -q --name %s); [ -n \"$id\" ] && break; "+
			"sleep 0.2; done; "+
			"cat /proc/$(crictl inspect -o go-template --template '{{.info.pid}}' $id)/cgroup", name)
		if err != nil || !burstableSlice.MatchString(group) {
			return fmt.Errorf("cgroup of %s: got %q, error %v, want %s", name, group, err, burstableSlice)
		}
	}
	return nil
}

// joinTwo makes the second machine join, with a bootstrap token.
func (c *cluster) joinTwo() error {
	command, err := c.one.sh("kubeadm token create --print-join-command 2>/dev/null")
	if err != nil {
		return err
	}
	out, err := c.two.sh("%s%s 2>&1", command, c.ignoring())
	if err != nil {
		return err
	}
	c.warnings(out)
	return nil
}

// join takes the second machine in, and checks that nodelet runs it with a certificate of its own.
func (c *cluster) join() error {
	if err := c.joinTwo(); err != nil {
		return err
	}
	if err := c.isNodelet(c.two, "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf"); err != nil {
		return err
	}
	return cmp.Or(c.ready("two"),
		c.two.need("test -L /var/lib/kubelet/pki/kubelet-client-current.pem",
			"! test -e /etc/kubernetes/bootstrap-kubelet.conf"),
		c.one.need(kubectlOne+
			"get csr -o jsonpath='{range .items[*]}{.spec.username} {.status.conditions[*].type}{\"\\n\"}{end}' "+
			"| grep '^system:bootstrap:.* Approved'"))
}

const webPod = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeName: two
  terminationGracePeriodSeconds: 2
  containers:
  - name: web
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-1
    imagePullPolicy: Never
    command: [sh, -c, "echo started; exec httpd -f -p 8080"]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`

// podOnTwo: the API server reaches the node that joined, both ways.
func (c *cluster) podOnTwo() error {
	if err := c.one.need("cat > /root/web.yaml <<'END'\n"+webPod+"END", kubectlOne+"apply -f /root/web.yaml",
		kubectlOne+"wait --for=condition=Ready pod/web --timeout=120s", kubectlOne+"logs web | grep -x started"); err != nil {
		return err
	}
	out, err := c.one.sh(kubectlOne + "exec web -- hostname")
	if err != nil || out != "web" {
		return fmt.Errorf("exec answers %q, error %v", out, err)
	}
	return nil
}

func (c *cluster) hash(pod string) (string, error) {
	return c.one.sh(kubectlOne+
		"-n kube-system get pod %s-one -o jsonpath='{.metadata.annotations.kubernetes\\.io/config\\.hash}'", pod)
}

// upgrade changes each manifest and the agent's configuration as a newer version would. kubeadm itself waits for each
// new mirror pod.
func (c *cluster) upgrade() error {
	before := map[string]string{}
	for _, name := range controlPlane {
		h, err := c.hash(name)
		if err != nil {
			return err
		}
		before[name] = h
		if err := c.one.need("mkdir -p /root/patches; echo 'metadata: {annotations: " +
			"{example.org/upgraded: \"yes\"}}' > /root/patches/" + name + "+merge.yaml"); err != nil {
			return err
		}
	}
	// The cluster is without CoreDNS, which this command looks for all the same.
	ignoring := c.ignoring("CoreDNSUnsupportedPlugins", "CoreDNSMigration")
	out, err := c.one.sh("echo 'maxPods: 55' > /root/patches/kubeletconfiguration+merge.yaml; "+
		"kubeadm upgrade apply %s --yes --force --patches=/root/patches%s 2>&1", c.version, ignoring)
	if err != nil {
		return err
	}
	c.warnings(out)
	for _, name := range controlPlane {
		after, err := c.hash(name)
		if err != nil || after == before[name] || after == "" {
			return fmt.Errorf("%s: the hash was %s and is %s, error %v", name, before[name], after, err)
		}
		if err := c.one.need(kubectlOne + "-n kube-system get pod " + name +
			"-one -o yaml | grep -q 'example.org/upgraded: \"yes\"'"); err != nil {
			return err
		}
	}
	if err := cmp.Or(c.one.need("systemctl restart kubelet"), c.ready("one"), c.controlPlaneRuns()); err != nil {
		return err
	}
	return c.one.need(poll(60, "1", "[ \"$("+kubectlOne+
		"get node one -o jsonpath='{.status.capacity.pods}')\" = 55 ]", ":"))
}

// reboot: the control plane comes back by itself.
func (c *cluster) reboot() error {
	if err := c.one.m.order("systemctl reboot"); err != nil {
		return err
	}
	if err := c.one.m.awaitBoot(bootLimit); err != nil {
		return err
	}
	if err := c.link(); err != nil {
		return err
	}
	return cmp.Or(c.one.need(c.one.await("kubelet"),
		poll(300, "1", kubectlOne+"get --raw=/readyz", ":")),
		c.ready("one"), c.controlPlaneRuns(), c.ready("two"))
}

// reset takes kubeadm's node off the machine; nothing of it is left. kubeadm gives the runtime five times two seconds
// for each sandbox, and only warns when that was not enough, as on a busy machine: then it must be run again.
func (c *cluster) reset(s *scenario) error {
	const runs = 5
	var said string
	for i := 1; ; i++ {
		out, err := s.sh("kubeadm reset --force 2>&1 && ! systemctl is-active -q kubelet")
		if err != nil {
			return err
		}
		said = out
		if _, why, slow := strings.Cut(out, "[reset] Failed to remove containers: "); !slow {
			break
		} else if i == runs {
			return fmt.Errorf("kubeadm reset left sandboxes %d times: %s", runs, why)
		}
		c.one.say("kubeadm reset was too slow to remove all sandboxes, again")
	}
	for what, q := range map[string]string{
		"sandboxes": "crictl pods -q",
		"mounts":    "grep /var/lib/kubelet /proc/mounts || true",
		"files":     "find /var/lib/kubelet /etc/kubernetes/manifests -mindepth 1 2>/dev/null || true",
	} {
		if out, err := s.sh("%s", q); err != nil || out != "" {
			return fmt.Errorf("%s after kubeadm reset: %q, error %v; it said:\n%s", what, out, err, said)
		}
	}
	return nil
}

func (c *cluster) joinAgain() error {
	return cmp.Or(c.one.need(kubectlOne+"delete pod web", kubectlOne+"delete node two"), c.reset(c.two), c.join(),
		c.podOnTwo())
}

func (c *cluster) resetOne() error { return cmp.Or(c.reset(c.two), c.reset(c.one)) }

func (c *cluster) remove() error {
	return c.one.need("dpkg -r nodelet-kubelet nodelet", "! test -e /usr/bin/kubelet",
		"! test -e /lib/systemd/system/kubelet.service")
}
