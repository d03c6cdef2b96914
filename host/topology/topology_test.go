package topology_test

import (
	"fmt"
	"os"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/nodelet/nodelet/host/topology"
)

// files is a tree of files by path.
type files map[string]string

func (f files) fs() fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range f {
		out[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return out
}

// cpu adds a CPU. cache is the list of CPUs that share its L3 cache; empty for none.
func (f files) cpu(id, node, socket, core int, cache string, cacheID int) {
	dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", id)
	f[dir+"topology/core_id"] = fmt.Sprint(core)
	f[dir+"topology/physical_package_id"] = fmt.Sprint(socket)
	if cache != "" {
		f[dir+"cache/index0/level"], f[dir+"cache/index0/id"] = "1", "0"
		f[dir+"cache/index0/shared_cpu_list"] = fmt.Sprint(id)
		f[dir+"cache/index3/level"], f[dir+"cache/index3/id"] = "3", fmt.Sprint(cacheID)
		f[dir+"cache/index3/shared_cpu_list"] = cache
	}
	if node >= 0 {
		f[fmt.Sprintf("sys/devices/system/node/node%d/cpu%d/topology/core_id", node, id)] = fmt.Sprint(core)
	}
}

func TestRead(t *testing.T) {
	f := files{
		"sys/devices/system/cpu/online": "0-4,6-7",
		"sys/devices/system/node/node0/meminfo": "Node 0 MemFree: 1 kB\n" +
			"Node 0 MemTotal:  4096 kB",
		"sys/devices/system/node/node0/distance":                                "10 21",
		"sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "3",
		"sys/devices/system/node/node1/meminfo":                                 "Node 1 MemTotal: 8192 kB",
		"sys/devices/system/node/node1/distance":                                "21 10",
		"sys/devices/system/node/possible":                                      "0-1",
	}
	// Two cores with two threads each in socket 0, which share a cache; four cores in socket 1 with two caches.
	for id, core := range []int{0, 1, 0, 1} {
		f.cpu(id, 0, 0, core, "0-3", 0)
	}
	f.cpu(4, 1, 1, 0, "4-5", 8)
	f.cpu(5, 1, 1, 1, "4-5", 8)
	f.cpu(6, 1, 1, 2, "6-7", 9)
	f.cpu(7, 1, 1, 3, "6-7", 9)
	got, err := topology.Read(f.fs())
	if err != nil {
		t.Fatal(err)
	}
	want := &topology.Machine{
		CPUs: []topology.CPU{
			{ID: 0, Core: 0}, {ID: 1, Core: 1}, {ID: 2, Core: 0}, {ID: 3, Core: 1},
			{ID: 4, Core: 4, Socket: 1, Node: 1, Cache: 8},
			{ID: 6, Core: 6, Socket: 1, Node: 1, Cache: 9},
			{ID: 7, Core: 7, Socket: 1, Node: 1, Cache: 9},
		},
		Nodes: []topology.Node{
			{ID: 0, Memory: 4 << 20, HugePages: map[uint64]uint64{2 << 20: 6 << 20}, Distances: []uint64{10, 21}},
			{ID: 1, Memory: 8 << 20, Distances: []uint64{21, 10}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, want := got.Online().String(), "0-4,6-7"; got != want {
		t.Errorf("online: got %s, want %s", got, want)
	}
	if got, want := got.Distance(1, 0), uint64(21); got != want {
		t.Errorf("distance: got %d, want %d", got, want)
	}
}

// TestReadWithoutNUMA checks that a kernel without NUMA has no nodes: each socket counts as one.
func TestReadWithoutNUMA(t *testing.T) {
	f := files{}
	f.cpu(0, -1, 0, 0, "", 0)
	f.cpu(1, -1, 1, 0, "", 0)
	got, err := topology.Read(f.fs())
	want := &topology.Machine{
		CPUs:  []topology.CPU{{ID: 0}, {ID: 1, Core: 1, Socket: 1, Node: 1, Cache: 1}},
		Nodes: []topology.Node{{ID: 0}, {ID: 1}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got error %v, difference %s, want none", err, diff)
	}
}

// TestReadCaches checks that the number of a cache may have 32 bits, as firmware of Arm can set it, and that a cache
// that cannot be read keeps no machine from being read: its CPUs have the cache of their socket.
func TestReadCaches(t *testing.T) {
	f := files{}
	f.cpu(0, -1, 0, 0, "0", 4294967295)
	f.cpu(1, -1, 0, 1, "1", 7)
	f.cpu(2, -1, 0, 2, "2", 8)
	f["sys/devices/system/cpu/cpu1/cache/index3/level"] = "x"
	got, err := topology.Read(f.fs())
	want := &topology.Machine{
		CPUs:  []topology.CPU{{ID: 0, Cache: 4294967295}, {ID: 1, Core: 1}, {ID: 2, Core: 2}},
		Nodes: []topology.Node{{ID: 0}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got error %v, difference %s, want none", err, diff)
	}
}

// TestReadThisMachine checks that the machine of the test can be read.
func TestReadThisMachine(t *testing.T) {
	m, err := topology.Read(os.DirFS("/"))
	if err != nil {
		t.Skip("this machine does not say which CPUs it has:", err)
	}
	if len(m.CPUs) == 0 || len(m.Nodes) == 0 {
		t.Errorf("got %d CPUs and %d NUMA nodes, want at least one of each", len(m.CPUs), len(m.Nodes))
	}
}

func TestReadRefusesDamage(t *testing.T) {
	for name, text := range map[string]string{
		"sys/devices/system/cpu/online":          "all",
		"sys/devices/system/node/node0/meminfo":  "nothing",
		"sys/devices/system/node/node0/distance": "near",
	} {
		f := files{}
		f.cpu(0, 0, 0, 0, "", 0)
		f[name] = text
		if m, err := topology.Read(f.fs()); err == nil {
			t.Errorf("%s with %q: got %v, want an error", name, text, m)
		}
	}
	if m, err := topology.Read(fstest.MapFS{}); err == nil {
		t.Errorf("an empty tree: got %v, want an error", m)
	}
}

func FuzzParseCPUs(f *testing.F) {
	for _, text := range []string{"", "0", "0-3,8", "3-1", "0-99999999999", "-", ",", "1-2-3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := topology.ParseCPUs(text)
		if err != nil {
			return
		}
		again, err := topology.ParseCPUs(set.String())
		if err != nil || !again.Equals(set) {
			t.Errorf("%q: got %s, which reads as %s, %v", text, set, again, err)
		}
	})
}
