package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodelet/nodelet/config"
)

// Times are long because the machine is emulated, perhaps beside other work.
const (
	bootLimit    = 8 * time.Minute
	commandLimit = 8 * time.Minute
	settleLimit  = 6 * time.Minute
	watchdogSec  = 20
)

// pods are the machine's static pods with their priorities: one for each wave of a shutdown.
var pods = map[string]int{"low": 0, "middle": 1000, "critical": 2000001000}

// box is a machine to prove things in: emulated, or made of namespaces.
type box interface {
	start(limit time.Duration) error
	// awaitBoot waits until the machine has gone down and come up again.
	awaitBoot(limit time.Duration) error
	// sh runs a command in the machine and gives its output; order does not wait for it.
	sh(limit time.Duration, command string) (string, error)
	order(command string) error
	// cut takes the power away.
	cut()
	console() string // the file
}

// scenario is what is proved, in order; each step builds on the one before.
type scenario struct {
	m     box
	label string // begins each line that it prints
	began time.Time
	ids   map[string]string // container IDs by pod
	// stableFor is how long the same containers must go on to count as the same.
	stableFor time.Duration
	skip      *regexp.Regexp // steps to leave out; nil: none
	images    string         // bash pattern for the names of the image archives to import, without .tar; "": all
	staying   int            // how many pods run as long as the machine
}

func (s *scenario) say(format string, args ...any) {
	fmt.Printf("%s%7.1fs  %s\n", s.label, time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// step is one thing that is proved.
type step struct {
	name string
	do   func() error
}

// inOrder runs steps until one fails, and prints how long each took.
func (s *scenario) inOrder(steps []step) error {
	for _, step := range steps {
		if s.skip != nil && s.skip.MatchString(step.name) {
			s.say("left out: %s", step.name)
			continue
		}
		began := time.Now()
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		s.say("ok: %s (%.1f s)", step.name, time.Since(began).Seconds())
	}
	return nil
}

func (s *scenario) all() error {
	return s.inOrder([]step{
		{"boot", s.boot},
		{"install the package", s.install},
		{"the service and its pods", s.service},
		{"cgroups", s.cgroups},
		{"systemctl restart", s.restart},
		{"kill -9", s.kill},
		{"watchdog", s.watchdog},
		{"bad input", s.badInput},
		{"reboot in waves", s.reboot},
		{"power cut", s.powerCut},
		{"a crash while the machine goes down", s.crashInShutdown},
		{"the kubelet runs the node", s.toKubelet},
		{"nodelet takes over", s.toNodelet},
		{"and gives back", s.giveBack},
		{"the node's own unit again", s.ownAgain},
		{"remove the package", s.remove},
	})
}

// prove runs the scenario; of a failure it prints what helps to understand it.
func (s *scenario) prove() error {
	err := s.all()
	if err != nil {
		s.show()
	}
	return err
}

// show prints what helps to understand a failure.
func (s *scenario) show() {
	for _, c := range []string{"journalctl -b -1 --no-pager -n 60 -o short-precise -u nodelet -u systemd-logind",
		"journalctl -b --no-pager -n 60 -u nodelet -u kubelet", "systemctl status --no-pager nodelet kubelet",
		"cat /var/lib/vmtest/log",
		"crictl ps -a; crictl pods", "journalctl -b --no-pager -n 20 -u containerd"} {
		out, err := s.m.sh(time.Minute, c+" || true")
		fmt.Printf("--- %s (%v)\n%s\n", c, err, out)
	}
	fmt.Println("--- console\n" + tail(s.m.console(), 20))
}

func (s *scenario) sh(format string, args ...any) (string, error) {
	out, err := s.m.sh(commandLimit, fmt.Sprintf(format, args...))
	return strings.TrimSpace(out), err
}

// need runs commands that must succeed.
func (s *scenario) need(commands ...string) error {
	for _, c := range commands {
		if _, err := s.sh("%s", c); err != nil {
			return err
		}
	}
	return nil
}

// poll is a shell command that succeeds as soon as check does, which it runs again after a pause in seconds. After so
// many tries it runs show and fails.
func poll(tries int, pause, check, show string) string {
	return fmt.Sprintf("for i in $(seq %d); do %s && exit 0; sleep %s; done; %s; exit 1", tries, check, pause, show)
}

// mountPayload mounts the payload, which no machine does at boot. User-Mode Linux sees it as a directory of its host.
const mountPayload = "mountpoint -q /payload || if [ -e /dev/vdb ]; then mount -o ro /dev/vdb /payload; " +
	"else mount -r -t hostfs none /payload -o /payload; fi"

func (s *scenario) boot() error {
	if err := s.m.start(bootLimit); err != nil {
		return err
	}
	return s.runtime()
}

// runtime waits for containerd and gives it the images.
func (s *scenario) runtime() error {
	return s.need(
		mountPayload,
		"printf 'runtime-endpoint: unix:///run/containerd/containerd.sock\\ntimeout: 60\\n' > /etc/crictl.yaml",
		"until ctr version >/dev/null 2>&1; do sleep 0.2; done",
		"for f in /payload/"+cmp.Or(s.images, "*")+".tar; do ctr -n k8s.io images import --local $f; done",
	)
}

func (s *scenario) install() error {
	for name, priority := range pods {
		err := s.need("mkdir -p /etc/kubernetes/manifests",
			fmt.Sprintf("sed 's/NAME/%[1]s/g; s/PRIORITY/%[2]d/' /payload/pod.yaml > /etc/kubernetes/manifests/%[1]s.yaml",
				name, priority))
		if err != nil {
			return err
		}
	}
	return s.need("dpkg -i /payload/nodelet.deb", "cp /payload/config.yaml /etc/nodelet/config.yaml",
		"echo 'NODELET_ARGS=--config=/etc/nodelet/config.yaml --node-ip=192.0.2.10 -v=4' > /etc/default/nodelet",
		"mkdir -p /etc/systemd/system/nodelet.service.d; printf '[Service]\\nWatchdogSec="+strconv.Itoa(watchdogSec)+
			"\\n' > /etc/systemd/system/nodelet.service.d/vm.conf",
		"systemctl daemon-reload", "nodelet --version | grep -q '^Kubernetes "+config.KubernetesVersion+"+nodelet'",
		"test -s /usr/share/man/man8/nodelet.8.gz")
}

// service starts it: active means that the node can run pods.
func (s *scenario) service() error {
	began := time.Now()
	if err := s.need("systemctl enable --now nodelet"); err != nil {
		return err
	}
	took := time.Since(began)
	if state, err := s.sh("systemctl is-active nodelet; systemctl show -p StatusText --value nodelet"); err != nil ||
		!strings.HasPrefix(state, "active\nruns the pods of node vm") {
		return fmt.Errorf("after its start the service says %q, error %v", state, err)
	}
	if err := s.running(); err != nil {
		return err
	}
	s.say("active after %s, all pods run after %s (emulated)", took.Round(100*time.Millisecond),
		time.Since(began).Round(100*time.Millisecond))
	out, err := s.sh("journalctl -b -u nodelet -o json --no-pager -n 5 | head -1")
	if err != nil || !strings.Contains(out, `"PRIORITY"`) {
		return fmt.Errorf("the journal has no priorities: %s, error %v", out, err)
	}
	return nil
}

var errTwice = errors.New("runs twice")

// containers gives the running containers' IDs by pod; more than one of a pod is an error.
func (s *scenario) containers() (map[string]string, error) {
	out, err := s.sh("crictl ps -o json --state Running")
	if err != nil {
		return nil, err
	}
	var list struct {
		Containers []struct {
			ID     string            `json:"id"`
			Labels map[string]string `json:"labels"`
		} `json:"containers"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read %q: %w", out, err)
	}
	all := map[string]string{}
	for _, c := range list.Containers {
		name, _, _ := strings.Cut(c.Labels["io.kubernetes.pod.name"], "-")
		if all[name] != "" {
			return nil, fmt.Errorf("pod %s %w: %s and %s", name, errTwice, all[name], c.ID)
		}
		all[name] = c.ID
	}
	return all, nil
}

// running waits until each pod runs, once.
func (s *scenario) running() error {
	end := time.Now().Add(settleLimit)
	for {
		all, err := s.containers()
		if errors.Is(err, errTwice) {
			return err
		}
		if err == nil && len(all) == s.staying {
			s.ids = all
			return nil
		}
		if time.Now().After(end) { // crictl itself gives up sooner where the machine is slow
			return fmt.Errorf("after %s only these run: %v, %w", settleLimit, slices.Sorted(maps.Keys(all)), err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// same: the pods run on, in the very containers, and were not started again.
func (s *scenario) same() error {
	before := maps.Clone(s.ids)
	time.Sleep(s.stableFor) // what would be done wrong would be done about now
	if err := s.running(); err != nil {
		return err
	}
	if !maps.Equal(before, s.ids) {
		return fmt.Errorf("containers were %v and are %v", before, s.ids)
	}
	return nil
}

func (s *scenario) cgroups() error {
	if err := s.need("test -e /sys/fs/cgroup/cgroup.controllers"); err != nil {
		return fmt.Errorf("the machine has no cgroup v2: %w", err)
	}
	for name := range pods {
		out, err := s.sh("cat /proc/$(crictl inspect -o go-template --template '{{.info.pid}}' %s)/cgroup", s.ids[name])
		if err != nil {
			return err
		}
		if !strings.HasPrefix(out, "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod") ||
			!strings.HasSuffix(out, "/cri-containerd-"+s.ids[name]+".scope") {
			return fmt.Errorf("cgroup of pod %s: got %s", name, out)
		}
	}
	limit, err := s.sh("cat /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod*.slice/"+
		"cri-containerd-%s.scope/memory.max", s.ids["low"])
	if err != nil || limit != strconv.Itoa(50<<20) {
		return fmt.Errorf("memory.max is %q, error %v", limit, err)
	}
	return nil
}

func (s *scenario) restart() error {
	return errors.Join(s.need("systemctl restart nodelet"), s.same())
}

// again waits until systemd has another main process for unit, which is active.
func (s *scenario) again(unit, oldPID string) error {
	check := fmt.Sprintf("p=$(systemctl show -p MainPID --value %[1]s); [ $p != 0 ] && [ $p != %[2]s ] && "+
		"systemctl is-active -q %[1]s", unit, oldPID)
	return s.need(poll(300, "0.3", check, ":"))
}

func (s *scenario) kill() error {
	pid, err := s.sh("systemctl show -p MainPID --value nodelet")
	if err != nil {
		return err
	}
	return errors.Join(s.need("kill -9 "+pid), s.again("nodelet", pid), s.same())
}

// watchdog checks that systemd restarts an agent that hangs.
func (s *scenario) watchdog() error {
	pid, err := s.sh("systemctl show -p MainPID --value nodelet")
	if err != nil {
		return err
	}
	if err := errors.Join(s.need("kill -STOP "+pid), s.again("nodelet", pid), s.same()); err != nil {
		return err
	}
	return s.need("journalctl -b -u nodelet --no-pager | grep -qi watchdog")
}

// badInput: what is wrong is said by `systemctl status`, and goes away with its cause.
func (s *scenario) badInput() error {
	second, err := s.sh("nodelet --config=/etc/nodelet/config.yaml 2>&1; echo exit $?")
	if err != nil || !strings.Contains(second, "another agent (pid") || !strings.Contains(second, "exit 1") {
		return fmt.Errorf("a second agent says %q, error %v", second, err)
	}
	if err := s.need("cp /etc/nodelet/config.yaml /root/good.yaml", "echo 'maxPods: many' >> /etc/nodelet/config.yaml",
		"systemctl stop nodelet", "systemctl start --no-block nodelet"); err != nil {
		return err
	}
	const show = "systemctl status --no-pager nodelet"
	if err := s.need(poll(100, "0.3", show+" | grep -q maxPods", show)); err != nil {
		return err
	}
	if err := s.need("cp /root/good.yaml /etc/nodelet/config.yaml", s.await("nodelet")); err != nil {
		return err
	}
	return s.same()
}

func (s *scenario) await(unit string) string {
	return poll(300, "0.3", "systemctl is-active -q "+unit, "systemctl status --no-pager "+unit)
}

var kubeletHealthy = poll(300, "0.5", `[ "$(exec 3<>/dev/tcp/127.0.0.1/10248; `+
	`printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3; tail -1 <&3)" = ok ]`, ":")

// kubeletRuns: it is the kubelet that answers, and it has had the time to do what it would do wrong.
func (s *scenario) kubeletRuns() error {
	return s.need(kubeletHealthy, "readlink /proc/$(systemctl show -p MainPID --value kubelet)/exe | grep -q kubelet",
		"sleep 30")
}

// toKubelet gives the node to the real kubelet: the static pods have the UIDs that it would give them, and run on.
func (s *scenario) toKubelet() error {
	err := s.need(mountPayload, "cp /payload/kubelet /usr/bin/kubelet", "cp /payload/kubelet.service /etc/systemd/system/",
		"systemctl daemon-reload",
		"systemctl disable --now nodelet", "systemctl start kubelet")
	return cmp.Or(err, s.kubeletRuns(), s.same())
}

// toNodelet takes it over in one step.
func (s *scenario) toNodelet() error {
	return errors.Join(s.need("nodelet systemd install --wait=10m",
		"readlink /proc/$(systemctl show -p MainPID --value kubelet)/exe | grep -q nodelet",
		"nodelet systemd status | grep -q 'kubelet.service: active (running): /usr/bin/nodelet'"), s.same())
}

func (s *scenario) giveBack() error {
	return cmp.Or(s.need("nodelet systemd uninstall --wait=10m"), s.kubeletRuns(), s.same())
}

func (s *scenario) ownAgain() error {
	return errors.Join(s.need("systemctl disable --now kubelet", "rm /etc/systemd/system/kubelet.service",
		"systemctl daemon-reload",
		"systemctl enable --now nodelet"), s.same())
}

// record is a line that a pod has written: what happened, and when in seconds since the boot.
type record struct {
	what, pod string
	at        float64
}

func (s *scenario) records() ([]record, error) {
	out, err := s.sh("cat /var/lib/vmtest/log")
	if err != nil {
		return nil, err
	}
	var all []record
	for line := range strings.Lines(out) {
		var r record
		if n, _ := fmt.Sscan(line, &r.what, &r.pod, &r.at); n == 3 {
			all = append(all, r)
		}
	}
	return all, nil
}

// inWaves checks that each pod got SIGTERM and ended by itself, and none before those of lower priority had ended.
func inWaves(all []record) error {
	at := map[string]float64{}
	for _, r := range all {
		at[r.what+" "+r.pod] = r.at
	}
	for _, want := range []string{"TERM low", "gone low", "TERM middle", "gone middle", "TERM critical", "gone critical"} {
		if at[want] == 0 {
			return fmt.Errorf("never seen: %q in %v", want, all)
		}
	}
	if at["gone low"] > at["TERM middle"] || at["gone middle"] > at["TERM critical"] {
		return fmt.Errorf("the waves overlap: %v", all)
	}
	return nil
}

// reboot shuts the machine down with its pods running.
func (s *scenario) reboot() error {
	if err := s.need("rm -f /var/lib/vmtest/log", "systemctl show -p MainPID --value nodelet",
		"busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager "+
			"InhibitDelayMaxUSec | grep -q 'u\\? *40000000\\|t 40000000'",
		"systemd-inhibit --list | grep -q nodelet"); err != nil {
		return err
	}
	if err := s.m.order("systemctl reboot"); err != nil {
		return err
	}
	if err := s.m.awaitBoot(bootLimit); err != nil {
		return err
	}
	if err := s.need(s.await("nodelet")); err != nil {
		return err
	}
	if err := s.running(); err != nil {
		return err
	}
	all, err := s.records()
	if err != nil {
		return err
	}
	s.say("records: %v", all)
	return inWaves(all)
}

// powerCut takes the power away: everything runs again, once.
func (s *scenario) powerCut() error {
	if err := s.need("sync", "rm -f /var/lib/vmtest/log"); err != nil {
		return err
	}
	s.m.cut()
	began := time.Now()
	if err := s.m.start(bootLimit); err != nil {
		return err
	}
	if err := s.need(s.await("nodelet")); err != nil {
		return err
	}
	if err := s.running(); err != nil {
		return err
	}
	s.say("all pods run %s after the power came back (emulated)", time.Since(began).Round(time.Second))
	return s.same()
}

// crashInShutdown kills the agent while it terminates the pods. The next run continues, and the machine waits for it.
func (s *scenario) crashInShutdown() error {
	if err := s.need("rm -f /var/lib/vmtest/log"); err != nil {
		return err
	}
	stored, err := s.sh("systemctl show -p NFileDescriptorStore --value nodelet")
	if err != nil || stored != "1" {
		return fmt.Errorf("systemd stores %q descriptors of the agent, error %v, want 1: the lock that delays a shutdown",
			stored, err)
	}
	// The agent that starts next ends the other groups.
	err = s.m.order("(while ! grep -q 'TERM low' /var/lib/vmtest/log; do sleep 0.1; done; " +
		"kill -9 $(systemctl show -p MainPID --value nodelet)) >/dev/null 2>&1 & sleep 0.5; systemctl reboot")
	if err != nil {
		return err
	}
	if err := s.m.awaitBoot(bootLimit); err != nil {
		return err
	}
	if err := errors.Join(s.need(s.await("nodelet")), s.running()); err != nil {
		return err
	}
	all, err := s.records()
	if err != nil {
		return err
	}
	s.say("records: %v", all)
	return inWaves(all)
}

// remove removes the package. Pods keep running without an agent.
func (s *scenario) remove() error {
	return errors.Join(s.need("dpkg -r nodelet", "! test -e /usr/bin/nodelet", "! systemctl is-active -q nodelet"),
		s.same())
}
