package usage

import (
	"context"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/metrics"
)

// group is one cgroup with the labels and values that /metrics/cadvisor exposes.
type group struct {
	labels  string
	use     Usage
	born    time.Time
	network []Interface
	// devices are the block devices of the machine, fileSystems those on them; nil for all cgroups but the root.
	devices     []blockDevice
	fileSystems []mountedFS
	// open are the open files; nil for the root and for pods, which have no processes but in the cgroups below.
	open *OpenFiles
}

// WriteCadvisor writes the families of /metrics/cadvisor: for the node, agent and runtime, kubepods with its classes,
// each pod, each sandbox (with the pod's network) and each container. Names and labels are cAdvisor's. There are no
// timestamps, because all values are read during the scrape.
func (c *Collector) WriteCadvisor(ctx context.Context, t *metrics.Text) {
	pods, err := c.look(ctx, Full)
	devices, root := readBlockDevices(c.realRootDir())
	groups := c.groups(pods, devices)
	groups[0].fileSystems = c.mountedFSs(devices, root)
	c.writeMachine(t)
	for i := range families {
		f := &families[i]
		t.Family(f.name, f.help, f.kind)
		for j := range groups {
			f.write(t, &groups[j])
		}
	}
	t.Gauge("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise",
		metrics.Flag(err != nil))
}

// groups returns all cgroups that /metrics/cadvisor exposes.
func (c *Collector) groups(pods []podUse, devices []blockDevice) []group {
	label := func(container, id, image, name, namespace, pod string) string {
		return metrics.Labels("container",
			container, "id", id, "image", image, "name", name, "namespace", namespace, "pod", pod)
	}
	h := c.cfg.Hierarchy
	all := []group{c.machineGroup(label("", "/", "", "", "", ""), devices)}
	var cgroups []string
	for _, s := range c.systems() {
		cgroups = append(cgroups, s.cgroup)
	}
	for _, cgroup := range append(cgroups, c.cfg.ClassCgroups...) {
		if use, ok := h.read(cgroup, Full); ok {
			g := group{labels: label("", cgroup, "", "", "", ""), use: use, born: h.born(cgroup)}
			g.open = h.openFiles(cgroup, maxOpenFiles)
			g.open.HasSoft = false // the kubelet has the limit of containers alone
			all = append(all, g)
		}
	}
	for i := range pods {
		p := &pods[i]
		if p.known {
			labels := label("", p.Cgroup, "", "", p.Namespace, p.Name)
			all = append(all, group{labels: labels, use: p.use, born: h.born(p.Cgroup)})
		}
		if s := p.sandbox; s != nil {
			g := group{
				labels: label(s.name, s.cgroup, s.image, s.nameIn(p), p.Namespace, p.Name),
				use:    leaf(s.use),
				born:   s.created,
			}
			if pid := c.process(p); pid != 0 {
				g.network = interfacesOf(pid)
			}
			g.open = h.openFiles(s.cgroup, maxOpenFiles)
			all = append(all, g)
		}
		for j := range p.containers {
			one := &p.containers[j]
			all = append(all, group{
				labels: label(one.name, one.cgroup, one.image, one.nameIn(p), p.Namespace, p.Name),
				use:    leaf(one.use),
				born:   one.created,
				open:   h.openFiles(one.cgroup, maxOpenFiles),
			})
		}
	}
	nameDevices(all, devices)
	return all
}

// nameIn returns the name of a container or sandbox of the pod as cAdvisor has it: its ID, or the name that CRI-O gives
// it. The names of cgroups tell which runtime it is.
func (one *containerUse) nameIn(p *podUse) string {
	if !strings.HasPrefix(path.Base(one.cgroup), "crio-") {
		return one.id
	}
	attempt := strconv.FormatUint(uint64(one.attempt), 10)
	return strings.Join([]string{"k8s", one.name, p.Name, p.Namespace, string(p.UID), attempt}, "_")
}

// leaf returns the usage of a cgroup of which none below has samples of its own: it counts what the kernel kills there,
// too. crun runs a container in such a cgroup. In all other samples, the sum over them would be too large.
func leaf(u Usage) Usage {
	u.OOMKills = max(u.OOMKills, u.Events.TreeOOMKills)
	return u
}

// machineGroup returns the root cgroup, with all processes of the machine.
func (c *Collector) machineGroup(labels string, devices []blockDevice) group {
	use, _ := c.machineUse(Full)
	if c.cfg.SystemOOMs != nil {
		use.OOMKills = c.cfg.SystemOOMs()
	}
	for i := range devices {
		if devices[i].mount != nil {
			use.IO = devices[i].addTo(use.IO)
		}
	}
	return group{labels: labels, use: use, born: c.cfg.Boot, network: interfacesOf(0), devices: devices}
}

// nameDevices sets the paths of the devices that the cgroups have read and written: in the root cgroup, which comes
// first, those by which they are mounted, as for the file systems.
func nameDevices(groups []group, devices []blockDevice) {
	paths, mounted := map[[2]uint64]string{}, map[[2]uint64]string{}
	for i := range devices {
		d := &devices[i]
		number := [2]uint64{d.major, d.minor}
		paths[number], mounted[number] = d.path, d.mountedAs
	}
	names := mounted
	for i := range groups {
		for j := range groups[i].use.IO {
			io := &groups[i].use.IO[j]
			io.Device = names[[2]uint64{io.Major, io.Minor}]
		}
		names = paths
	}
}

// family is one family of /metrics/cadvisor.
type family struct {
	name, help string
	kind       metrics.Kind
	// write writes the samples of a cgroup.
	write func(*metrics.Text, *group)
}

// single returns a family with at most one sample of a cgroup; value returns false if the cgroup has none.
func single(name, help string, kind metrics.Kind, value func(*group) (float64, bool)) family {
	return family{name, help, kind, func(t *metrics.Text, g *group) {
		if v, ok := value(g); ok {
			t.Rendered(v, 0, g.labels)
		}
	}}
}

func (c *Collector) writeMachine(t *metrics.Text) {
	id := machine.ReadIdentity("/")
	t.Gauge("cadvisor_version_info",
		"A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & "+
			"cadvisor revision.", 1, "cadvisorRevision", "", "cadvisorVersion", "", "dockerVersion", "",
		"kernelVersion", id.Kernel, "osVersion", id.OSImage)
	processors := countCPUs(os.DirFS("/"))
	m := readMeminfo()
	identity := []string{"boot_id", id.BootID, "machine_id", id.MachineID, "system_uuid", id.SystemUUID}
	for _, f := range []struct {
		name, help string
		value      float64
	}{
		{"machine_cpu_cores", "Number of logical CPU cores.", float64(processors.logical)},
		{"machine_cpu_physical_cores", "Number of physical CPU cores.", float64(processors.cores)},
		{"machine_cpu_sockets", "Number of CPU sockets.", float64(processors.sockets)},
		{"machine_memory_bytes", "Amount of memory installed on the machine.", float64(m.total)},
		{"machine_swap_bytes", "Amount of swap memory available on the machine.", float64(m.swapTotal)},
	} {
		t.Gauge(f.name, f.help, f.value, identity...)
	}
	t.Gauge("machine_scrape_error", "1 if there was an error while getting machine metrics, 0 otherwise.", 0)
}
