package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

// Read reads the machine. root is the root of the file system, normally os.DirFS("/").
func Read(root fs.FS) (*Machine, error) {
	r := reader{root}
	online, err := Online(root)
	if err != nil {
		return nil, err
	}
	m := &Machine{}
	ids, err := r.numbered(nodeDir, "node")
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := r.node(m, id, online); err != nil {
			return nil, fmt.Errorf("read NUMA node %d: %w", id, err)
		}
	}
	if len(ids) == 0 {
		if err := r.withoutNUMA(m); err != nil {
			return nil, err
		}
	}
	if len(m.CPUs) == 0 {
		return nil, errors.New("the kernel reports no CPU that is online")
	}
	sort.Slice(m.CPUs, func(i, j int) bool { return m.CPUs[i].ID < m.CPUs[j].ID })
	return m, nil
}

// reader reads files beneath its root.
type reader struct{ root fs.FS }

// Online returns the CPUs that are online. A kernel without CPU hotplug does not say: then all CPUs are.
func Online(root fs.FS) (cpuset.CPUSet, error) {
	r := reader{root}
	text, err := r.text(cpuDir + "/online")
	if err == nil {
		return ParseCPUs(text)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return cpuset.New(), err
	}
	ids, err := r.numbered(cpuDir, "cpu")
	return cpuset.New(ids...), err
}

// CPUs returns the CPUs that are online with their cores and sockets, without NUMA nodes and caches. One of which the
// kernel says neither is left out.
func CPUs(root fs.FS) ([]CPU, error) {
	online, err := Online(root)
	if err != nil {
		return nil, err
	}
	r := reader{root}
	ids, err := r.numbered(cpuDir, "cpu")
	if err != nil {
		return nil, err
	}
	return r.cpus(ids, online)
}

// node adds a NUMA node and its CPUs to the machine.
func (r reader) node(m *Machine, id int, online cpuset.CPUSet) error {
	dir := fmt.Sprintf("%s/node%d", nodeDir, id)
	ids, err := r.numbered(dir, "cpu")
	if err != nil {
		return err
	}
	cpus, err := r.cpus(ids, online)
	if err != nil {
		return err
	}
	for i := range cpus {
		cpus[i].Node = id
	}
	r.caches(cpus)
	n := Node{ID: id}
	if n.Memory, err = r.memory(dir); err != nil {
		return err
	}
	if n.HugePages, err = HugePages(r.root, dir+"/hugepages"); err != nil {
		return err
	}
	if n.Distances, err = r.distances(dir); err != nil {
		return err
	}
	m.CPUs, m.Nodes = append(m.CPUs, cpus...), append(m.Nodes, n)
	return nil
}

// withoutNUMA adds the CPUs of a kernel without NUMA. As with the kubelet, each socket counts as a NUMA node whose
// memory is not known.
func (r reader) withoutNUMA(m *Machine) error {
	cpus, err := CPUs(r.root)
	if err != nil {
		return err
	}
	for i := range cpus {
		cpus[i].Node = cpus[i].Socket
	}
	bySocket := map[int][]CPU{}
	for _, c := range cpus {
		bySocket[c.Socket] = append(bySocket[c.Socket], c)
	}
	for socket, cpus := range bySocket {
		r.caches(cpus)
		m.CPUs, m.Nodes = append(m.CPUs, cpus...), append(m.Nodes, Node{ID: socket})
	}
	sort.Slice(m.Nodes, func(i, j int) bool { return m.Nodes[i].ID < m.Nodes[j].ID })
	return nil
}

// cpus reads the cores and sockets of those CPUs of a node that are online. A CPU without this information is left out.
func (r reader) cpus(ids []int, online cpuset.CPUSet) ([]CPU, error) {
	type core struct{ socket, id int }
	cores := map[core]int{}
	var out []CPU
	for _, id := range ids {
		if !online.Contains(id) {
			continue
		}
		dir := fmt.Sprintf("%s/cpu%d/topology", cpuDir, id)
		number, err := r.number(dir + "/core_id")
		socket, err2 := r.number(dir + "/physical_package_id")
		if err := errors.Join(err, err2); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		at := core{socket, number}
		if _, seen := cores[at]; !seen {
			cores[at] = id // ids are sorted, so this is the smallest
		}
		out = append(out, CPU{ID: id, Core: cores[at], Socket: socket, Cache: socket})
	}
	return out, nil
}

// caches sets the uncore caches of the CPUs of one NUMA node. The kernel of some virtual machines reports no caches;
// the kubelet ignores the caches of a node from the first core with one that it cannot read.
func (r reader) caches(cpus []CPU) {
	for _, c := range cpus {
		if c.Core != c.ID {
			continue
		}
		threads := 0
		for _, other := range cpus {
			if other.Core == c.Core {
				threads++
			}
		}
		cores := len(cores(cpus))
		cache, found, err := r.uncore(c.ID, cores*threads)
		if err != nil {
			return
		}
		for i := range cpus {
			if found && cpus[i].Core == c.Core {
				cpus[i].Cache = cache
			}
		}
	}
}

func cores(cpus []CPU) map[int]bool {
	all := map[int]bool{}
	for _, c := range cpus {
		all[c.Core] = true
	}
	return all
}

// uncore returns the first cache above level 2 of a CPU that is not shared by exactly as many CPUs as its node has.
func (r reader) uncore(cpu, inNode int) (id int, found bool, err error) {
	dir := fmt.Sprintf("%s/cpu%d/cache", cpuDir, cpu)
	indexes, err := r.numbered(dir, "index")
	if err != nil {
		return 0, false, err
	}
	for _, i := range indexes {
		one := fmt.Sprintf("%s/index%d", dir, i)
		level, err := r.number(one + "/level")
		if err != nil {
			return 0, false, err
		}
		number, err := r.number(one + "/id")
		if err != nil {
			return 0, false, err
		}
		text, err := r.text(one + "/shared_cpu_list")
		if err != nil {
			return 0, false, err
		}
		shared, err := ParseCPUs(text)
		if err != nil {
			return 0, false, fmt.Errorf("%s: %w", one, err)
		}
		if level > 2 && shared.Size() != inNode && !found {
			id, found = number, true
		}
	}
	return id, found, nil
}

// memory returns the memory of a NUMA node in bytes, from a line such as "Node 0 MemTotal: 32817192 kB".
func (r reader) memory(dir string) (uint64, error) {
	text, err := r.text(dir + "/meminfo")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		_, rest, ok := strings.Cut(line, "MemTotal:")
		if !ok {
			continue
		}
		kilobytes, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 54)
		if err != nil {
			return 0, fmt.Errorf("%s/meminfo: MemTotal: %w", dir, err)
		}
		return kilobytes * 1024, nil
	}
	return 0, fmt.Errorf("%s/meminfo has no MemTotal", dir)
}

// HugePages returns the bytes in huge pages by page size, both in bytes. dir has a directory for each size, such as
// hugepages-2048kB; a kernel without huge pages has none.
func HugePages(root fs.FS, dir string) (map[uint64]uint64, error) {
	r := reader{root}
	entries, err := fs.ReadDir(root, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pages := map[uint64]uint64{}
	for _, e := range entries {
		kilobytes, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: %q does not name a page size", dir, e.Name())
		}
		count, err := r.number(path.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			return nil, err
		}
		pages[kilobytes*1024] = uint64(count) * kilobytes * 1024
	}
	return pages, nil
}

// distances returns the distances of a NUMA node to all nodes.
func (r reader) distances(dir string) ([]uint64, error) {
	text, err := r.text(dir + "/distance")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []uint64
	for field := range strings.FieldsSeq(text) {
		d, err := strconv.ParseUint(field, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%s/distance: %w", dir, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// numbered returns the numbers of the entries of a directory that consist of prefix and a number, sorted; none if the
// directory does not exist.
func (r reader) numbered(dir, prefix string) ([]int, error) {
	entries, err := fs.ReadDir(r.root, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), prefix)
		if n, err := strconv.ParseUint(number, 10, 16); ok && err == nil {
			all = append(all, int(n))
		}
	}
	slices.Sort(all)
	return all, nil
}

// number reads a file that holds one number, which is not negative except for the cores and sockets of some virtual
// machines.
func (r reader) number(file string) (int, error) {
	text, err := r.text(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// text reads a file without the space around its content.
func (r reader) text(file string) (string, error) {
	content, err := fs.ReadFile(r.root, file)
	return strings.TrimSpace(string(content)), err
}
