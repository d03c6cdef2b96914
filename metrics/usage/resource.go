package usage

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/metrics"
)

// WriteResource writes the families of /metrics/resource, which metrics-server reads.
func (c *Collector) WriteResource(ctx context.Context, t *metrics.Text) {
	pods, err := c.look(ctx, Basic)
	if pods != nil {
		c.writeResource(t, pods)
	}
	t.Gauge("resource_scrape_error", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
		metrics.Flag(err != nil))
}

// row is one line of a family: a cgroup with its labels.
type row struct {
	labels  string
	use     *Usage
	created time.Time
}

func (c *Collector) writeResource(t *metrics.Text, pods []podUse) {
	node, _ := c.machineUse(Basic)
	ofPods, ofContainers := rowsOf(pods)
	for _, one := range []struct {
		scope string
		rows  []row
	}{{"container", ofContainers}, {"node", []row{{use: &node}}}, {"pod", ofPods}} {
		write := func(name, help string, kind metrics.Kind, value func(*Usage) (float64, bool)) {
			t.Family(one.scope+name, help, kind)
			for _, r := range one.rows {
				if v, ok := value(r.use); ok {
					t.Rendered(v, r.use.At.UnixMilli(), r.labels)
				}
			}
		}
		write("_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the "+one.scope+" in core-seconds",
			metrics.KindCounter, func(u *Usage) (float64, bool) { return float64(u.CPU) / 1e9, u.HasCPU })
		write("_memory_working_set_bytes", "[STABLE] Current working set of the "+one.scope+" in bytes",
			metrics.KindGauge, func(u *Usage) (float64, bool) { return float64(u.WorkingSet), u.HasMemory })
		swap := "[ALPHA] Current amount of the " + one.scope + " swap usage in bytes"
		switch one.scope {
		case "container":
			write("_swap_limit_bytes", "[ALPHA] Current amount of the container swap limit in bytes", metrics.KindGauge,
				func(u *Usage) (float64, bool) { return float64(u.SwapLimit), u.HasMemory && u.SwapLimit < unlimited })
		case "node":
			swap = "[ALPHA] Current swap usage of the node in bytes"
		}
		write("_swap_usage_bytes", swap, metrics.KindGauge,
			func(u *Usage) (float64, bool) { return float64(u.Swap), u.HasMemory })
	}
	t.Family("container_start_time_seconds",
		"[STABLE] Start time of the container since unix epoch in seconds", metrics.KindGauge)
	for _, r := range ofContainers {
		t.Rendered(float64(r.created.UnixNano())/1e9, 0, r.labels)
	}
}

// rowsOf returns the rows of the pods with containers that run, and of these containers. The labels do not have what
// tells two pods of one name apart: each name has one row. They are sorted by labels, as with the kubelet.
func rowsOf(pods []podUse) (ofPods, ofContainers []row) {
	for _, p := range byName(pods) {
		for i := range p.containers {
			one := &p.containers[i]
			labels := metrics.Labels("container", one.name, "namespace", p.Namespace, "pod", p.Name)
			ofContainers = append(ofContainers, row{labels, &one.use, one.created})
		}
		if p.known && len(p.containers) > 0 {
			ofPods = append(ofPods, row{metrics.Labels("namespace", p.Namespace, "pod", p.Name), &p.use, time.Time{}})
		}
	}
	for _, rows := range [][]row{ofPods, ofContainers} {
		slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.labels, b.labels) })
	}
	return ofPods, ofContainers
}

// byName returns the pods without those that no source knows any more and that have a successor of their name. A pod
// that was deleted by force may be ending for long, for example because of a file server that does not answer.
func byName(pods []podUse) map[types.NamespacedName]*podUse {
	all := make(map[types.NamespacedName]*podUse, len(pods))
	for i := range pods {
		p := &pods[i]
		key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		if other := all[key]; other == nil || other.Orphaned {
			all[key] = p
		}
	}
	return all
}

// WriteVolumes writes the families of /metrics about disks: PersistentVolumeClaims and the logs of containers.
func (c *Collector) WriteVolumes(ctx context.Context, t *metrics.Text) {
	pods, _ := c.look(ctx, None)
	if pods == nil {
		return
	}
	t.Family("kubelet_container_log_filesystem_used_bytes",
		"[ALPHA] Bytes used by the container's logs on the filesystem.", metrics.KindGauge)
	sizes := c.sizesOf(ctx, pods)
	for i := range pods {
		p := &pods[i]
		for j := range p.containers {
			if s := sizes[c.logPlace(p.Pod.Pod, p.containers[j].name)]; s.known {
				t.Sample(float64(s.Bytes),
					"container", p.containers[j].name, "namespace", p.Namespace, "pod", p.Name, "uid", string(p.UID))
			}
		}
	}
	c.writeClaims(t, pods)
}

// writeClaims writes the usage of the PersistentVolumeClaims of the pods. A claim that several pods share is written
// once, with what is known of it in any of them.
func (c *Collector) writeClaims(t *metrics.Text, pods []podUse) {
	type claim struct {
		labels string
		fileSystem
	}
	c.refreshVolumes(pods)
	var all []claim
	index := map[string]int{}
	for i := range pods {
		for _, v := range pods[i].Volumes {
			if v.Claim == "" {
				continue
			}
			labels := metrics.Labels("namespace", pods[i].Namespace, "persistentvolumeclaim", v.Claim)
			at, seen := index[labels]
			if !seen {
				at = len(all)
				index[labels] = at
				all = append(all, claim{labels: labels})
			}
			all[at].merge(c.far.read(v))
		}
	}
	for _, f := range []struct {
		name, help string
		value      func(*Figures) uint64
	}{
		{"available_bytes", "Number of available bytes in the volume", func(f *Figures) uint64 { return f.Available }},
		{"capacity_bytes", "Capacity in bytes of the volume", func(f *Figures) uint64 { return f.Capacity }},
		{"inodes", "Maximum number of inodes in the volume", func(f *Figures) uint64 { return f.Inodes }},
		{"inodes_free", "Number of free inodes in the volume", func(f *Figures) uint64 { return f.InodesFree }},
		{"inodes_used", "Number of used inodes in the volume", func(f *Figures) uint64 { return f.InodesUsed }},
		{"used_bytes", "Number of used bytes in the volume", func(f *Figures) uint64 { return f.Used }},
	} {
		t.Family("kubelet_volume_stats_"+f.name, "[ALPHA] "+f.help, metrics.KindGauge)
		for i := range all {
			if all[i].known {
				t.Rendered(float64(f.value(&all[i].Figures)), 0, all[i].labels)
			}
		}
	}
	t.Family("kubelet_volume_stats_health_status_abnormal",
		"[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 "+
			"indicates volume is healthy", metrics.KindGauge)
	for i := range all {
		if abnormal := all[i].Abnormal; abnormal != nil {
			t.Rendered(metrics.Flag(*abnormal), 0, all[i].labels)
		}
	}
}
