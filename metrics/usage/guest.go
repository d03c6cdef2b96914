package usage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// addGuests adds the containers of pods in which none has a cgroup with processes, because they run in a virtual
// machine or on a kernel of their own. Only the runtime knows what they use.
func (c *Collector) addGuests(ctx context.Context, pods []podUse, known map[string]identity, d Detail) error {
	if d == Full {
		return nil // what it is read for has cgroups alone
	}
	failed := make([]error, len(pods))
	var all sync.WaitGroup
	for i := range pods { // at the same time: a virtual machine that hangs hides no other
		if p := &pods[i]; len(p.containers) == 0 && len(p.Images) > 0 {
			all.Go(func() { failed[i] = p.addGuest(ctx, c.cfg.Runtime, known, d) })
		}
	}
	all.Wait()
	err := cmp.Or(failed...)
	if err != nil {
		c.cfg.Log.Warn("the usage of containers without a cgroup is missing", "err", err)
	}
	return err
}

// addGuest is addGuests for one pod.
func (p *podUse) addGuest(ctx context.Context, r Runtime, known map[string]identity, d Detail) (err error) {
	uses := map[string]Usage{}
	if d > None {
		if uses, err = askUsage(ctx, r, p.UID); err != nil {
			err = fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.Images)) {
		use, measured := uses[id]
		if who, ok := known[id]; ok && (measured || d == None) {
			p.add(containerUse{identity: who, cgroup: id, use: use})
		}
	}
	return err
}

// askUsage asks the runtime for the usage of the containers of a pod, by container ID. It leaves out those of which the
// runtime has none.
func askUsage(ctx context.Context, r Runtime, pod types.UID) (map[string]Usage, error) {
	all, err := r.PodContainerStats(ctx, string(pod))
	uses := make(map[string]Usage, len(all))
	for _, one := range all {
		if u := reported(one); u.HasCPU || u.HasMemory {
			uses[one.GetAttributes().GetId()] = u
		}
	}
	return uses, err
}

// reported returns the usage that the runtime reports for a container.
func reported(s *runtimeapi.ContainerStats) (u Usage) {
	cpu, memory := s.GetCpu(), s.GetMemory()
	u.At = time.Unix(0, cpu.GetTimestamp())
	u.CPU, u.HasCPU = cpu.GetUsageCoreNanoSeconds().GetValue(), cpu.GetUsageCoreNanoSeconds() != nil
	u.WorkingSet, u.HasMemory = memory.GetWorkingSetBytes().GetValue(), memory.GetWorkingSetBytes() != nil
	u.Memory, u.RSS = memory.GetUsageBytes().GetValue(), memory.GetRssBytes().GetValue()
	u.Tree = PageFaults{memory.GetPageFaults().GetValue(), memory.GetMajorPageFaults().GetValue()}
	u.MemoryLimit, u.SwapLimit = unlimited, unlimited
	if left := memory.GetAvailableBytes(); left.GetValue() > 0 {
		u.MemoryLimit = u.WorkingSet + left.GetValue()
	}
	u.Swap = s.GetSwap().GetSwapUsageBytes().GetValue()
	return u
}
