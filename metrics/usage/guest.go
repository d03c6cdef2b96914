package usage

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// addGuests adds the containers of pods in which none has a cgroup with processes, because they run in a virtual
// machine or on a kernel of their own. Only the runtime knows what they use.
func (c *Collector) addGuests(ctx context.Context, pods []podUse, known map[string]identity, d Detail) {
	if d == Full {
		return // what it is read for has cgroups alone
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	var failed error
	for i := range pods {
		p := &pods[i]
		if len(p.containers) > 0 || len(p.Images) == 0 {
			continue
		}
		uses := map[string]Usage{}
		if d > None {
			var err error
			if uses, err = askUsage(ctx, c.cfg.Runtime, p.UID); err != nil {
				failed = err
			}
		}
		for _, id := range slices.Sorted(maps.Keys(p.Images)) {
			use, measured := uses[id]
			if who, ok := known[id]; ok && (measured || d == None) {
				p.add(containerUse{identity: who, cgroup: id, use: use})
			}
		}
	}
	if failed != nil {
		c.cfg.Log.Warn("the usage of containers without a cgroup is missing", "err", failed)
	}
}

// askUsage asks the runtime for the usage of the containers of a pod, by container ID.
func askUsage(ctx context.Context, r Runtime, pod types.UID) (map[string]Usage, error) {
	all, err := r.PodContainerStats(ctx, string(pod))
	uses := make(map[string]Usage, len(all))
	for _, one := range all {
		uses[one.GetAttributes().GetId()] = reported(one)
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
