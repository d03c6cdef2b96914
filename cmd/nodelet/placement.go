package main

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/topology"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/plugins/devices"
)

// newPlacement sets up the CPU, memory and topology managers. With all of them off, it only checks that no other agent
// has left CPUs to containers, and that the reserved CPUs exist.
func newPlacement(p *process, x parts) error {
	settings := placementSettings(p.cfg)
	reserved := p.cfg.Reserved.CPUs
	if settings.Off() && reserved.IsEmpty() {
		return placement.CheckOff(p.cfg.Paths.Root)
	}
	machine, err := topology.Read(os.DirFS("/"))
	if err != nil {
		return fmt.Errorf("read the CPUs of the machine: %w", err)
	}
	if online := machine.Online(); !reserved.IsSubsetOf(online) {
		return fmt.Errorf("reservedSystemCPUs: CPUs %s are not online; online are %s",
			reserved.Difference(online), online)
	}
	if settings.Off() {
		return placement.CheckOff(p.cfg.Paths.Root)
	}
	m, err := placement.New(placement.Config{
		Root:        p.cfg.Paths.Root,
		Settings:    settings,
		Machine:     machine,
		Reservation: node.Reservation(nodeConfig(p.cfg), x.machine.node.Capacity()),
		Runtime:     x.runtime.client,
		Ended: func(ctx context.Context, pods []types.UID) []types.UID {
			return x.links.supervisor.Ended(ctx, pods)
		},
		Devices: func(pod *corev1.Pod) policy.Devices { return devicesFor(x.plugins.devices.Views(pod)) },
		Meter:   instruments.NewPlacement(p.metrics),
		Log:     p.log,
	})
	if err != nil {
		return err
	}
	x.links.placement = m
	p.start(m.Run)
	return nil
}

func placementSettings(c *config.Config) placement.Settings {
	k := &c.Kubelet
	s := placement.Settings{
		CPUPolicy:       k.CPUManagerPolicy,
		CPUOptions:      k.CPUManagerPolicyOptions,
		ReconcilePeriod: k.CPUManagerReconcilePeriod.Duration,
		ReservedCPUs:    c.Reserved.CPUs,
		MemoryPolicy:    k.MemoryManagerPolicy,
		TopologyPolicy:  k.TopologyManagerPolicy,
		TopologyScope:   k.TopologyManagerScope,
		TopologyOptions: k.TopologyManagerPolicyOptions,
		Gate:            c.Gate,
	}
	for _, r := range k.ReservedMemory {
		s.ReservedMemory = append(s.ReservedMemory, placement.MemoryReservation{Node: int(r.NumaNode), Limits: r.Limits})
	}
	return s
}

// devicesFor converts the devices that a pod can get, and their NUMA nodes.
func devicesFor(views map[string]devices.View) policy.Devices {
	all := make(policy.Devices, len(views))
	for name, v := range views {
		r := policy.Resource{All: make(map[string]numa.Mask, len(v.All)), Free: v.Free}
		for id, nodes := range v.All {
			for _, node := range nodes {
				r.All[id] |= numa.MaskOf(int(node))
			}
		}
		all[name] = r
	}
	return all
}

// exclusive tells the pod resources API which CPUs and which memory containers have for themselves.
type exclusive struct{ *links }

func (e exclusive) CPUs(pod types.UID, container string) []int64 {
	return e.placement.CPUs(pod, container)
}

func (e exclusive) AllCPUs() []int64 { return e.placement.AllocatableCPUs() }

func (e exclusive) Memory(pod types.UID, container string) []*podresources.ContainerMemory {
	return memoryBlocks(e.placement.Memory(pod, container))
}

func (e exclusive) AllMemory() []*podresources.ContainerMemory {
	return memoryBlocks(e.placement.AllocatableMemory())
}

func memoryBlocks(blocks []memory.Block) []*podresources.ContainerMemory {
	var out []*podresources.ContainerMemory
	for _, b := range blocks {
		one := &podresources.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: &podresources.TopologyInfo{}}
		for _, id := range b.NUMAAffinity {
			one.Topology.Nodes = append(one.Topology.Nodes, &podresources.NUMANode{ID: int64(id)})
		}
		out = append(out, one)
	}
	return out
}
