package usage

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/internal/backoff"
)

// defaultInterface is the interface whose counters are reported for the pod or node.
const defaultInterface = "eth0"

// SummaryHandler serves /stats/summary; with only_cpu_and_memory=true without disks and networks.
func (c *Collector) SummaryHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := Plain
		if r.URL.Query().Get("only_cpu_and_memory") == "true" {
			d = Pressure
		}
		s, err := c.Summary(r.Context(), d)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s) // an error means that the client has disconnected
	})
}

// Summary measures the node and all its pods: with Pressure only CPU, memory and swap.
func (c *Collector) Summary(ctx context.Context, d Detail) (*api.Summary, error) {
	var f fileSystems
	var asked sync.WaitGroup // at the same time, as each may take as long as a runtime that hangs may
	if d >= Plain {
		asked.Go(func() { f = c.fileSystems(ctx) })
	}
	pods, err := c.look(ctx, d)
	asked.Wait()
	if pods == nil {
		return nil, err
	}
	c.waitForRates(ctx, pods)
	s := &api.Summary{Node: c.nodeStats(d), Pods: []api.PodStats{}}
	for i := range pods {
		s.Pods = append(s.Pods, c.podStats(&pods[i], d))
	}
	if d >= Plain {
		c.complete(ctx, s, pods, f)
	}
	return s, nil
}

// complete adds disks, networks and processes to the summary of these pods.
func (c *Collector) complete(ctx context.Context, s *api.Summary, pods []podUse, f fileSystems) {
	sizes := c.sizesOf(ctx, pods)
	c.refreshVolumes(pods)
	s.Node.Fs = f.root.stats()
	s.Node.Runtime = &api.RuntimeStats{ImageFs: f.image.stats(), ContainerFs: f.container.stats()}
	s.Node.Network = networkStats(interfacesOf(0))
	if running, limit, err := machine.Tasks("/proc"); err == nil {
		s.Node.Rlimit = &api.RlimitStats{Time: metav1.Now(), MaxPID: &limit, NumOfRunningProcesses: &running}
	}
	for i := range pods {
		c.addStorage(&s.Pods[i], &pods[i], f, sizes)
		if pid := c.process(&pods[i]); pid != 0 {
			s.Pods[i].Network = networkStats(interfacesOf(pid))
		}
	}
}

// waitForRates takes a first sample of cgroups that have none and waits, so that the second sample gives a rate. It
// forgets those of cgroups that are gone.
func (c *Collector) waitForRates(ctx context.Context, pods []podUse) {
	ok := true
	note := func(cgroup string, u *Usage) {
		_, known := c.rates.note(cgroup, u)
		ok = ok && known
	}
	ofPods := func(do func(cgroup string, u *Usage)) {
		for i := range pods {
			p := &pods[i]
			if p.known {
				do(p.Cgroup, &p.use)
			}
			for j := range p.containers {
				do(p.containers[j].cgroup, &p.containers[j].use)
			}
		}
	}
	c.rates.forget(time.Now())
	root, _ := c.machineUse(Basic)
	note("/", &root)
	for _, system := range c.systems() {
		if all, there := c.cfg.Hierarchy.read(system.cgroup, Basic); there {
			note(system.cgroup, &all)
		}
	}
	ofPods(note)
	if ok || !backoff.Sleep(ctx, firstRate) {
		return
	}
	ofPods(func(cgroup string, u *Usage) {
		if fresh, there := c.cfg.Hierarchy.read(cgroup, Basic); there {
			u.At, u.CPU = fresh.At, fresh.CPU
		}
	})
}

func (c *Collector) nodeStats(d Detail) api.NodeStats {
	u, m := c.machineUse(d)
	u.MemoryLimit = less(m.total, m.hugePages) // cgroups do not count reserved huge pages as used
	n := api.NodeStats{NodeName: c.cfg.Node, StartTime: metav1.NewTime(c.cfg.Boot)}
	n.CPU = c.cpuStats("/", &u)
	n.Memory = memoryStats(&u)
	n.Swap = swapStats(&u)
	n.IO = ioStats(&u, d)
	for _, system := range c.systems() {
		if u, ok := c.cfg.Hierarchy.read(system.cgroup, d); ok {
			born := c.cfg.Hierarchy.born(system.cgroup)
			n.SystemContainers = append(n.SystemContainers, c.containerStats(system.name, born, system.cgroup, &u, d))
		}
	}
	return n
}

func (c *Collector) podStats(p *podUse, d Detail) api.PodStats {
	out := api.PodStats{
		PodRef:     api.PodReference{Name: p.Name, Namespace: p.Namespace, UID: string(p.UID)},
		StartTime:  metav1.NewTime(p.Started),
		Containers: []api.ContainerStats{},
	}
	if p.known {
		out.CPU, out.Memory = c.cpuStats(p.Cgroup, &p.use), memoryStats(&p.use)
		out.Swap, out.IO = swapStats(&p.use), ioStats(&p.use, d)
	}
	processes := uint64(0) // without that of the sandbox, as with the kubelet
	for i := range p.containers {
		one := &p.containers[i]
		processes += one.use.Processes
		out.Containers = append(out.Containers, c.containerStats(one.name, one.created, one.cgroup, &one.use, d))
	}
	if d >= Plain {
		out.ProcessStats = &api.ProcessStats{ProcessCount: &processes}
	}
	return out
}

func (c *Collector) containerStats(name string, started time.Time, cgroup string, u *Usage,
	d Detail) api.ContainerStats {
	return api.ContainerStats{
		Name:      name,
		StartTime: metav1.NewTime(started),
		CPU:       c.cpuStats(cgroup, u),
		Memory:    memoryStats(u),
		Swap:      swapStats(u),
		IO:        ioStats(u, d),
	}
}

func (c *Collector) cpuStats(cgroup string, u *Usage) *api.CPUStats {
	if !u.HasCPU {
		return nil
	}
	s := &api.CPUStats{Time: metav1.NewTime(u.At), UsageCoreNanoSeconds: &u.CPU, PSI: pressure(u.CPUPressure)}
	if rate, ok := c.rates.note(cgroup, u); ok {
		s.UsageNanoCores = &rate
	}
	return s
}

func memoryStats(u *Usage) *api.MemoryStats {
	if !u.HasMemory {
		return nil
	}
	s := &api.MemoryStats{
		Time:            metav1.NewTime(u.At),
		UsageBytes:      &u.Memory,
		WorkingSetBytes: &u.WorkingSet,
		RSSBytes:        &u.RSS,
		PageFaults:      &u.Tree.Faults,
		MajorPageFaults: &u.Tree.MajorFaults,
		PSI:             pressure(u.MemoryPressure),
	}
	if u.MemoryLimit < unlimited {
		left := less(u.MemoryLimit, u.WorkingSet)
		s.AvailableBytes = &left
	}
	return s
}

func swapStats(u *Usage) *api.SwapStats {
	if !u.HasMemory {
		return nil
	}
	s := &api.SwapStats{Time: metav1.NewTime(u.At), SwapUsageBytes: &u.Swap}
	if u.SwapLimit < unlimited {
		left := less(u.SwapLimit, u.Swap)
		s.SwapAvailableBytes = &left
	}
	return s
}

func ioStats(u *Usage, d Detail) *api.IOStats {
	if !u.HasCPU || d < Plain {
		return nil
	}
	return &api.IOStats{Time: metav1.NewTime(u.At), PSI: pressure(u.IOPressure)}
}

// pressure returns zeros where the kernel does not count pressure, as on cgroup v1: the kubelet does so too.
func pressure(p *api.PSIStats) *api.PSIStats { return cmp.Or(p, &api.PSIStats{}) }

func networkStats(all []Interface) *api.NetworkStats {
	if len(all) == 0 {
		return nil
	}
	n := &api.NetworkStats{Time: metav1.Now()}
	for i := range all {
		one := &all[i]
		s := api.InterfaceStats{
			Name:     one.Name,
			RxBytes:  &one.RxBytes,
			RxErrors: &one.RxErrors,
			TxBytes:  &one.TxBytes,
			TxErrors: &one.TxErrors,
		}
		if one.Name == defaultInterface {
			n.InterfaceStats = s
		}
		n.Interfaces = append(n.Interfaces, s)
	}
	return n
}
