package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// v2Scenario proves a node on cgroup v2 with the systemd driver, without an API server: static pods.
type v2Scenario struct {
	*scenario
	uml  *umlMachine
	pods map[string]corev1.Pod
}

const (
	kubepods = "/sys/fs/cgroup/kubepods.slice"
	// v2Timeout is how long one wait inside the machine may take; it is never reached on an idle machine.
	v2Timeout = 3 * time.Minute
)

// kernelTests are the packages whose tests run in the machine as well, with systemd and the kernel's pressure stall
// information, which a machine that runs `make test` need not have.
var kernelTests = []string{"cgroups", "pressure"}

// v2Files are the images of its pods, and the programs of kernelTests.
func v2Files(ctx context.Context, cache *testbed.Cache, dir string) ([]string, error) {
	files, err := cache.Images(ctx)
	files = slices.DeleteFunc(files, isAgnhost)
	for _, name := range kernelTests {
		program := filepath.Join(dir, name+".test")
		err = errors.Join(err, run(ctx, "", "go", "test", "-c", "-o", program, "./host/"+name))
		files = append(files, program)
	}
	return files, err
}

func (s *v2Scenario) prove() error {
	err := s.inOrder([]step{
		{"boot", func() error { return s.m.start(bootLimit) }},
		{"systemd is running", s.systemd},
		{"cgroup v2 has all controllers", s.controllers},
		{"containerd and images", s.runtime},
		{"tests of packages, with this kernel", s.kernelTests},
		{"install the package", s.install},
		{"the service is active", func() error { return s.need("systemctl enable --now nodelet") }},
		{"the pods are Ready", s.ready},
		{"the node's port and a pod answer", s.network},
		{"limits in the cgroups", s.limits},
		{"systemd knows the limits", s.units},
		{"the kernel kills the whole container", s.oomKill},
		{"kill -9", s.kill},
		{"systemctl restart", s.restart},
		{"reserved cgroups, memory QoS, no swap for a static pod", s.reserved},
		{"power-off", s.uml.powerOff},
	})
	if err != nil {
		s.show()
	}
	return err
}

// systemd waits until the machine has started everything, and fails where a unit has not started.
func (s *v2Scenario) systemd() error {
	state, _ := s.sh("systemctl is-system-running --wait")
	if state != "running" {
		units, _ := s.sh("systemctl --no-pager --failed")
		return fmt.Errorf("systemd is %q, want running:\n%s", state, units)
	}
	return nil
}

func (s *v2Scenario) controllers() error {
	out, err := s.sh("stat -f -c %%T /sys/fs/cgroup; cat /sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return err
	}
	s.say("%s", strings.ReplaceAll(out, "\n", ": "))
	for _, c := range []string{"cgroup2fs", "cpuset", "cpu", "io", "memory", "pids"} {
		if !slices.Contains(strings.Fields(out), c) {
			return fmt.Errorf("got %q, want %s in it", out, c)
		}
	}
	return nil
}

// kernelTests fails also for a test that skips: what it needs is here.
func (s *v2Scenario) kernelTests() error {
	for _, name := range kernelTests {
		out, err := s.sh("cd /tmp && NODELET_TEST_PRIVILEGED=1 /payload/%s.test -test.v 2>&1 | grep -v '^=== '", name)
		passed, skipped := strings.Count(out, "--- PASS: "), strings.Count(out, "--- SKIP: ")
		if err != nil || !strings.HasSuffix(out, "PASS") || skipped > 0 || passed == 0 {
			return fmt.Errorf("tests of %s: want all passed and none skipped, error %v:\n%s", name, err, out)
		}
		s.say("%s: %d tests passed", name, passed)
	}
	return nil
}

func (s *v2Scenario) install() error {
	return s.need(
		"dpkg -i /payload/nodelet.deb",
		"cp /payload/v2.yaml /etc/nodelet/config.yaml",
		"cp /payload/v2-pods.yaml /etc/kubernetes/manifests/",
		"echo 'NODELET_ARGS=--config=/etc/nodelet/config.yaml --node-ip=192.0.2.10 -v=4' > /etc/default/nodelet",
	)
}

// status reads the pods' status from the agent.
func (s *v2Scenario) status() error {
	out, err := s.sh("curl -sf http://192.0.2.10:10255/pods")
	if err != nil {
		return err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("read the agent's pods: %w", err)
	}
	s.pods = map[string]corev1.Pod{}
	for _, p := range list.Items {
		s.pods[strings.TrimSuffix(p.Name, "-vm")] = p
	}
	return nil
}

// await repeats check on new statuses until it returns nil.
func (s *v2Scenario) await(check func() error) error {
	for end := time.Now().Add(v2Timeout); ; time.Sleep(200 * time.Millisecond) {
		err := s.status()
		if err == nil {
			err = check()
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (s *v2Scenario) ready() error {
	return errors.Join(s.await(s.podIsReady("guaranteed")), s.await(s.podIsReady("burstable")))
}

func (s *v2Scenario) podIsReady(name string) func() error {
	return func() error {
		if p := s.pods[name]; !podReady(p) {
			return fmt.Errorf("pod %s is not Ready: %+v", name, p.Status.Conditions)
		}
		return nil
	}
}

func podReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// network reaches the agent's port from outside of the machine, and a pod from the node.
func (s *v2Scenario) network() error {
	out, err := s.uml.outside(time.Minute, "curl -sf http://192.0.2.10:10255/healthz")
	if err != nil || strings.TrimSpace(out) != "ok" {
		return fmt.Errorf("/healthz from outside: got %q, error %v, want ok", out, err)
	}
	out, err = s.sh("curl -sf http://%s:8080/", s.pods["burstable"].Status.PodIP)
	if err == nil && out != "served" {
		err = fmt.Errorf("the pod answers %q, want served", out)
	}
	return err
}

// slice is the directory of a pod's cgroup, and unit the name of its slice.
func (s *v2Scenario) slice(name string) (dir, unit string) {
	p := s.pods[name]
	uid := string(p.UID)
	if hash := p.Annotations["kubernetes.io/config.hash"]; hash != "" { // the agent knows a static pod by this
		uid = hash
	}
	parent, prefix := kubepods, "kubepods-"
	if p.Status.QOSClass != corev1.PodQOSGuaranteed {
		prefix += strings.ToLower(string(p.Status.QOSClass)) + "-"
		parent = filepath.Join(kubepods, strings.TrimSuffix(prefix, "-")+".slice")
	}
	unit = prefix + "pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	return filepath.Join(parent, unit), unit
}

// v2Limits are the files of a pod's cgroup and of its container's, with the values that the pods' manifests lead to.
var v2Limits = map[string]struct{ pod, container map[string]string }{
	"guaranteed": {
		pod:       map[string]string{"cpu.max": "50000 100000", "memory.max": "67108864", "pids.max": "100"},
		container: map[string]string{"cpu.max": "50000 100000", "memory.max": "67108864", "memory.oom.group": "1"},
	},
	"burstable": {
		pod:       map[string]string{"cpu.max": "20000 100000", "memory.max": "50331648", "pids.max": "100"},
		container: map[string]string{"cpu.max": "20000 100000", "memory.max": "50331648", "memory.oom.group": "1"},
	},
}

func (s *v2Scenario) limits() error {
	ids, err := s.containers()
	if err != nil {
		return err
	}
	s.ids = ids
	for _, name := range slices.Sorted(maps.Keys(v2Limits)) {
		dir, _ := s.slice(name)
		container := filepath.Join(dir, "cri-containerd-"+ids[name]+".scope")
		err := errors.Join(s.cgroupFiles(dir, v2Limits[name].pod), s.cgroupFiles(container, v2Limits[name].container))
		if err != nil {
			return fmt.Errorf("pod %s: %w", name, err)
		}
	}
	return nil
}

// cgroupFiles compares the files of a cgroup with what they must say.
func (s *v2Scenario) cgroupFiles(dir string, want map[string]string) error {
	var errs []error
	for _, file := range slices.Sorted(maps.Keys(want)) {
		got, err := s.sh("cat %s", filepath.Join(dir, file))
		if err == nil && got != want[file] {
			err = fmt.Errorf("%s of %s: got %q, want %q", file, filepath.Base(dir), got, want[file])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// units: the slices are units of systemd, which has the limits too and so keeps them when it reloads its configuration.
func (s *v2Scenario) units() error {
	_, guaranteed := s.slice("guaranteed")
	_, burstable := s.slice("burstable")
	for unit, want := range map[string]string{
		"kubepods.slice":            "",
		"kubepods-burstable.slice":  "",
		"kubepods-besteffort.slice": "",
		guaranteed:                  "CPUQuotaPerSecUSec=500ms\nMemoryMax=67108864\nTasksMax=100",
		burstable:                   "CPUQuotaPerSecUSec=200ms\nMemoryMax=50331648\nTasksMax=100",
	} {
		got, err := s.sh("systemctl is-active -q %[1]s && "+
			"systemctl show %[1]s -p CPUQuotaPerSecUSec -p MemoryMax -p TasksMax | sort", unit)
		if err == nil && want != "" && got != want {
			err = fmt.Errorf("unit %s: got %q, want %q", unit, got, want)
		}
		if err != nil {
			return err
		}
	}
	if err := s.need("systemctl daemon-reload"); err != nil {
		return err
	}
	for name, want := range v2Limits {
		// Not the containers' cgroups: systemd 252 resets memory.oom.group of a scope, also for other agents.
		dir, _ := s.slice(name)
		if err := s.cgroupFiles(dir, want.pod); err != nil {
			return fmt.Errorf("after systemctl daemon-reload: %w", err)
		}
	}
	return nil
}

// oomKill: the limit of one container ends all its processes, as memory.oom.group says, and no other container.
func (s *v2Scenario) oomKill() error {
	err := s.await(func() error {
		p := s.pods["greedy"]
		for _, c := range p.Status.ContainerStatuses {
			if e := c.State.Terminated; e != nil && e.Reason == "OOMKilled" && e.ExitCode == 137 {
				return nil
			}
		}
		return fmt.Errorf("pod greedy: got %+v, want OOMKilled", p.Status.ContainerStatuses)
	})
	return errors.Join(err, s.same())
}
