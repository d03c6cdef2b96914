package usage

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/moby/sys/mountinfo"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func TestParseUint(t *testing.T) {
	for text, want := range map[string]struct {
		v  uint64
		ok bool
	}{
		"0": {0, true}, "18446744073709551615": {math.MaxUint64, true}, "-1": {math.MaxUint64, true},
		"max": {0, false}, "": {0, false}, "-": {0, false}, "1e3": {0, false}, "18446744073709551616": {0, false},
		"+1": {0, false},
	} {
		if v, ok := parseUint([]byte(text)); v != want.v && ok || ok != want.ok {
			t.Errorf("%q: got %d, %v, want %v", text, v, ok, want)
		}
	}
}

func TestParseNetDev(t *testing.T) {
	const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|` +
		`bytes    packets errs drop fifo colls carrier compressed
    lo: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0
  eth0:   10  20  30  40    0     0          0         0   50  60  70  80    0     0       0          0
veth1: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
 short: 1 2 3
`
	want := []Interface{{
		Name:    "eth0",
		RxBytes: 10, RxPackets: 20, RxErrors: 30, RxDropped: 40,
		TxBytes: 50, TxPackets: 60, TxErrors: 70, TxDropped: 80,
	}}
	if got := parseNetDev([]byte(text)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestManyInterfaces checks that a container with any number of network interfaces does not fill the metrics.
func TestManyInterfaces(t *testing.T) {
	text := strings.Repeat("eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n", 2*maxInterfaces)
	if got := len(parseNetDev([]byte(text))); got != maxInterfaces {
		t.Errorf("got %d interfaces, want %d", got, maxInterfaces)
	}
}

func TestParseIO(t *testing.T) {
	const v2 = "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n253:1 rbytes=7\nnonsense\n"
	want := []DeviceIO{
		{Major: 8, ReadBytes: 1, WriteBytes: 2, Reads: 3, Writes: 4},
		{Major: 253, Minor: 1, ReadBytes: 7},
	}
	if got := parseIOStat([]byte(v2)); !reflect.DeepEqual(got, want) {
		t.Errorf("io.stat: got %+v, want %+v", got, want)
	}
	const shared = "7:7 7:6 8:0 rbytes=1 wbytes=2 rios=3 wios=4\n7:5 (unknown) rbytes=5\n" +
		"(unknown) 253:1 rbytes=7\n7:4 \n"
	if got := parseIOStat([]byte(shared)); !reflect.DeepEqual(got, want) {
		t.Errorf("io.stat with names that share a line: got %+v, want %+v", got, want)
	}
	all := parseBlkio(nil, []byte("8:0 Read 1\n8:0 Write 2\n8:0 Sync 3\n8:0 Async 4\n8:0 Total 10\nTotal 10\n"), true)
	all = parseBlkio(all, []byte("8:0 Read 5\n8:0 Write 6\n8:0 Sync 11\n8:0 Discard 12\n"), false)
	want = []DeviceIO{{
		Major:      8,
		ReadBytes:  1,
		WriteBytes: 2,
		SyncBytes:  3,
		AsyncBytes: 4,
		Reads:      5,
		Writes:     6,
		hasSync:    true,
	}}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("blkio: got %+v, want %+v", all, want)
	}
}

// parseMounts parses lines of a mountinfo file.
func parseMounts(t *testing.T, text string) []*mountinfo.Info {
	t.Helper()
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

func TestParseDiskStats(t *testing.T) {
	all := parseDiskStats([]byte("   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n" +
		" 8 1 sda1 0 0 8 1500 0 0 0 0 0 0 0\n 253 0 dm-0 1 1 1 1 1 1 1 1 1 1 1\n" +
		" 253 1 dm-1 0 0 0 0 0 0 0 0 0 0 0\n 7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n" +
		" 8 2 short 1 2 3\n x 2 nonsense 1 2 3 4 5 6 7 8 9 10 11\n"))
	mounts := parseMounts(t, "27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"+
		"28 27 0:45 /@ /data rw - btrfs /dev/dm-0 rw\n29 27 7:0 / /snap ro - squashfs /dev/loop0 ro\n"+
		"30 27 253:1 / /var/my\\040lib rw - xfs /dev/mapper/vg-var rw\n"+
		"31 27 253:1 /a /var/b rw - xfs /dev/mapper/vg-var rw\n"+
		"32 27 0:22 / /sys rw - sysfs sysfs rw\n")
	if on := findMounted(all, mounts, "/var/my lib/kubelet"); on != mounts[3] {
		t.Errorf("the directory: got on %+v, want on %+v", on, mounts[3])
	}
	type counts = [countsOfDevice]uint64
	want := []blockDevice{
		{path: "/dev/sda", mountedAs: "/dev/sda", major: 8, counts: counts{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{path: "/dev/sda1", mountedAs: "/dev/sda1", major: 8, minor: 1, mount: mounts[0],
			counts: counts{sectorsRead: 8, readTime: 1500}},
		{path: "/dev/dm-0", mountedAs: "/dev/dm-0", major: 253, mount: mounts[1],
			counts: counts{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{path: "/dev/dm-1", mountedAs: "/dev/mapper/vg-var", major: 253, minor: 1, mount: mounts[3]},
		{path: "/dev/loop0", mountedAs: "/dev/loop0", major: 7},
	}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("got %+v, want %+v", all, want)
	}
}

func TestParsePressure(t *testing.T) {
	got := parsePressure(
		[]byte("some avg10=1.50 avg60=0.25 avg300=0.00 total=12345\nfull avg10=0.10 avg60=NaN avg300=0.00 total=678\n"),
	)
	want := &api.PSIStats{
		Some: api.PSIData{Total: 12345000, Avg10: 1.5, Avg60: 0.25},
		Full: api.PSIData{Total: 678000, Avg10: 0.1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if parsePressure(nil) != nil {
		t.Error("an empty file: got a pressure, want none")
	}
}

func TestContainerID(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for dir, want := range map[string]string{
		id: id, "cri-containerd-" + id + ".scope": id, "crio-" + id + ".scope": id, "crio-conmon-" + id + ".scope": "",
		"crio-" + id: id, "crio-conmon-" + id: "",
		"init": "", "pod" + id: "", "system.slice": "", "": "", "cri-containerd-x.scope": "",
	} {
		if got := containerID(dir); got != want {
			t.Errorf("%q: got %q, want %q", dir, got, want)
		}
	}
}

func TestParseMachine(t *testing.T) {
	m := parseMeminfo(
		[]byte("MemTotal:       24684084 kB\nMemFree:  1000 kB\nSwapTotal: 0 kB\nHugePages_Total:  3\nMemFreeX: 9 kB\n" +
			"Hugetlb:            6144 kB\n"),
	)
	if m != (memory{total: 24684084 << 10, hugePages: 6144 << 10}) {
		t.Errorf("meminfo: got %+v", m)
	}
}

// TestCountCPUs checks that cores and sockets are those that are online, also on an architecture whose /proc/cpuinfo
// names none, and that each CPU is a core if the kernel does not say.
func TestCountCPUs(t *testing.T) {
	const dir = "sys/devices/system/cpu/"
	root := fstest.MapFS{dir + "online": {Data: []byte("0-4\n")}}
	for cpu := range 5 {
		root[fmt.Sprintf("%scpu%d/online", dir, cpu)] = &fstest.MapFile{}
	}
	if c := countCPUs(root); c != (cpus{5, 5, 1}) {
		t.Errorf("without cores: got %+v, want %+v", c, (cpus{5, 5, 1}))
	}
	for cpu, socket := range []int{0, 0, 0, 1, 1, 2} { // the last one is offline
		at := fmt.Sprintf("%scpu%d/topology/", dir, cpu)
		root[at+"physical_package_id"] = &fstest.MapFile{Data: []byte(strconv.Itoa(socket) + "\n")}
		root[at+"core_id"] = &fstest.MapFile{Data: []byte(strconv.Itoa(cpu/2) + "\n")}
	}
	if c := countCPUs(root); c != (cpus{5, 4, 2}) {
		t.Errorf("got %+v, want %+v", c, (cpus{5, 4, 2}))
	}
}

func FuzzParsers(f *testing.F) {
	for _, seed := range []string{"usage_usec 1\n", "8:0 rbytes=1\n", "8:0 Read 1\n", "eth0: 1 2 3 4 5 6 7 8 9 10 11 12\n",
		"8 0 sda 1 2 3 4 5 6 7 8 9 10 11\n", "27 1 8:0 / / rw - ext4 /dev/sda rw\n",
		"some avg10=0 total=1\n", "MemTotal: 1 kB\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		parseKeyed(text, map[string]*uint64{})
		parsePressure(text)
		parseMeminfo(text)
		for _, i := range parseNetDev(text) {
			if i.Name == "" {
				t.Error("got an interface without a name, want one with a name")
			}
		}
		parseIOStat(text)
		parseBlkio(nil, text, true)
		parseDiskStats(text)
		if id := containerID(string(text)); strings.ContainsAny(id, "/.\x00") {
			t.Errorf("got the ID %q, want one without a path", id)
		}
	})
}
