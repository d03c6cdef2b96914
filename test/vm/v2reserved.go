package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// reserved gives the node swap and another configuration: reserved cgroups, swap for pods, memory QoS. A pod that is
// created after that has them in its cgroups; the pods that ran before are not disturbed.
func (s *v2Scenario) reserved() error {
	err := s.need(
		"dd if=/dev/zero of=/swap bs=1M count=256 status=none && chmod 600 /swap && mkswap -q /swap && swapon /swap",
		"systemctl start reserved-system.slice reserved-kube.slice",
		"cat /payload/v2-reserved.yaml >> /etc/nodelet/config.yaml",
		"systemctl restart nodelet",
		"cp /payload/v2-later.yaml /etc/kubernetes/manifests/",
	)
	if err != nil {
		return err
	}
	before := s.ids
	s.staying++
	if err := s.await(s.podIsReady("later")); err != nil {
		return err
	}
	if err := s.running(); err != nil {
		return err
	}
	for name, id := range before {
		if s.ids[name] != id {
			return fmt.Errorf("pod %s: container was %s and is %s", name, id, s.ids[name])
		}
	}
	return errors.Join(s.reservedCgroups(), s.laterCgroup())
}

// reservedCgroups compares the limits of the reserved cgroups, and what is left for pods.
func (s *v2Scenario) reservedCgroups() error {
	capacity, err := s.meminfo("MemTotal")
	if err != nil {
		return err
	}
	const system, kube, slices = 200 << 20, 100 << 20, "/sys/fs/cgroup/reserved.slice/"
	return errors.Join(
		s.cgroupFiles(slices+"reserved-system.slice", map[string]string{"memory.max": strconv.Itoa(system)}),
		s.cgroupFiles(slices+"reserved-kube.slice", map[string]string{"memory.max": strconv.Itoa(kube)}),
		s.cgroupFiles(kubepods, map[string]string{"memory.max": strconv.FormatInt(capacity-system-kube, 10)}),
	)
}

// laterCgroup compares memory QoS and swap of a container that requests 32 MiB and is limited to 64 MiB.
func (s *v2Scenario) laterCgroup() error {
	const request, limit, page = 32 << 20, 64 << 20, 4096
	high := request + (limit-request)*9/10
	dir, _ := s.slice("later")
	return s.cgroupFiles(filepath.Join(dir, "cri-containerd-"+s.ids["later"]+".scope"), map[string]string{
		"memory.max":      strconv.Itoa(limit),
		"memory.low":      strconv.Itoa(request),
		"memory.high":     strconv.Itoa(high / page * page),
		"memory.swap.max": "0", // a static pod is critical
	})
}

// meminfo reads a value of /proc/meminfo in bytes.
func (s *v2Scenario) meminfo(field string) (int64, error) {
	out, err := s.sh("awk '/^%s:/ {print $2}' /proc/meminfo", field)
	if err != nil {
		return 0, err
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	return kib << 10, err
}
