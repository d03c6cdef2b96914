package usage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics"
	"github.com/nodelet/nodelet/test/exposition"
)

const (
	sandboxID = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	appID     = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	strayID   = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
	endedID   = "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
)

// fakeRuntime has one pod with one container, and counts the calls.
type fakeRuntime struct {
	mu    sync.Mutex
	lists int
	err   error
	// hangs: it answers no question before the caller gives up.
	hangs bool
	// noStats: it has no statistics of containers.
	noStats bool
	// noStatsOf is the UID of a pod whose containers have none.
	noStatsOf string
	// silentFor are the UIDs of pods for whose containers it answers too late. late counts these calls.
	silentFor []string
	late      int
	// hangsFor is the UID of a pod whose virtual machine does not answer it.
	hangsFor string
	// crio: it labels sandboxes as CRI-O does.
	crio bool
	// imageErr is why the image of a sandbox is not known.
	imageErr error
	// stats replaces appStats, if it is set.
	stats []*runtimeapi.ContainerStats
	// layerDirs are the directories of writable layers by container ID; layerErr is why no other is known.
	layerDirs map[string]string
	layerErr  error
	// more are containers besides those of the pod.
	more []*runtimeapi.Container
}

// answer returns the error of a call; a call to a runtime that hangs waits until ctx ends.
func (r *fakeRuntime) answer(ctx context.Context) error {
	if r.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return r.err
}

func (r *fakeRuntime) List(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	r.mu.Lock() // the collector may ask for several things at a time
	r.lists++
	r.mu.Unlock()
	labels := map[string]string{podutil.LabelContainerName: "app", podutil.LabelPodUID: "u1"}
	sandbox := &runtimeapi.PodSandbox{Id: sandboxID, CreatedAt: 1e18, Metadata: &runtimeapi.PodSandboxMetadata{Attempt: 2}}
	if r.crio {
		sandbox.Labels = map[string]string{podutil.LabelContainerName: "POD"}
	}
	return []*runtimeapi.PodSandbox{sandbox},
		append([]*runtimeapi.Container{{
			Id:        appID,
			Metadata:  &runtimeapi.ContainerMetadata{Name: "app", Attempt: 1},
			Labels:    labels,
			CreatedAt: 1e18,
			Image:     &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "example.com/app:1"},
			State:     runtimeapi.ContainerState_CONTAINER_RUNNING,
		}, {
			Id:     endedID,
			Labels: labels,
			State:  runtimeapi.ContainerState_CONTAINER_EXITED,
		}}, r.more...), r.answer(ctx)
}

func (r *fakeRuntime) SandboxImage(context.Context, string) (string, error) {
	if r.imageErr != nil {
		return "", r.imageErr
	}
	return "example.com/pause:1", nil
}

// appStats are the statistics of the container app, and of an earlier instance of it that has ended.
var appStats = []*runtimeapi.ContainerStats{layerStats(appID, 4096), layerStats(endedID, 1<<30)}

func layerStats(id string, bytes uint64) *runtimeapi.ContainerStats {
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: "app"}},
		WritableLayer: &runtimeapi.FilesystemUsage{
			UsedBytes:  &runtimeapi.UInt64Value{Value: bytes},
			InodesUsed: &runtimeapi.UInt64Value{Value: 3},
		},
	}
}

func (r *fakeRuntime) ListContainerStats(ctx context.Context) ([]*runtimeapi.ContainerStats, error) {
	if r.noStats {
		return nil, errors.New("no statistics")
	}
	if r.stats != nil {
		return r.stats, r.answer(ctx)
	}
	return appStats, r.answer(ctx)
}

func (r *fakeRuntime) PodContainerStats(ctx context.Context, pod string) ([]*runtimeapi.ContainerStats, error) {
	if pod == r.hangsFor {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if pod == r.noStatsOf {
		return nil, errors.New("no statistics")
	}
	if slices.Contains(r.silentFor, pod) {
		r.late++
		return nil, status.Error(codes.DeadlineExceeded, "no answer")
	}
	if pod != "u1" {
		return nil, r.answer(ctx)
	}
	if r.stats != nil {
		return r.stats, r.answer(ctx)
	}
	return appStats, r.answer(ctx)
}

func (r *fakeRuntime) LayerDir(_ context.Context, container string) (string, error) {
	dir, known := r.layerDirs[container]
	switch {
	case known:
		return dir, nil
	case r.layerErr != nil:
		r.late++
		return "", r.layerErr
	}
	return "", status.Error(codes.NotFound, "removed")
}

func (r *fakeRuntime) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId:      &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes: &runtimeapi.UInt64Value{Value: 1 << 20},
	}}}, r.answer(ctx)
}

// tree writes files below a directory.
func tree(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// v2Files returns the files of one cgroup of version 2.
func v2Files(dir string) map[string]string {
	files := map[string]string{}
	for name, text := range map[string]string{
		"cpu.stat": "usage_usec 2000000\nuser_usec 1500000\nsystem_usec 500000\n" +
			"nr_periods 10\nnr_throttled 2\nthrottled_usec 3000\n",
		"cpu.max": "20000 100000\n", "cpu.weight": "4\n", "memory.current": "1000000\n", "memory.max": "2000000\n",
		"memory.min": "700000\n", "memory.low": "800000\n",
		"memory.swap.current": "7\n", "memory.swap.max": "max\n", "memory.peak": "1100000\n",
		"memory.stat": "anon 300000\nfile 600000\nfile_mapped 5\nkernel 9\ninactive_file 400000\nactive_file 200000\n" +
			"pgfault 11\npgmajfault 1\nfile_dirty 12\nfile_writeback 13\npgscan 14\npgsteal 15\n" +
			"workingset_refault_file 16\nworkingset_refault_anon 17\n",
		"memory.events":       "low 0\nmax 4\noom 3\noom_kill 3\n",
		"memory.events.local": "low 0\nmax 4\noom 1\noom_kill 1\n",
		"pids.current":        "3\n",
		"pids.max":            "max\n",
		"cgroup.procs":        "1\n2\n",
		"cpu.pressure": "some avg10=2.00 avg60=0.00 avg300=0.00 total=3000\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=2\n",
		"io.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=5000000\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n",
		"io.stat": "259:1 rbytes=100 wbytes=200 rios=3 wios=4\n",
	} {
		files[filepath.Join(dir, name)] = text
	}
	return files
}

func v1Files(dir string) map[string]string {
	files := map[string]string{}
	for name, text := range map[string]string{
		"cpuacct/DIR/cpuacct.usage": "2000000000\n", "cpuacct/DIR/cpuacct.stat": "user 150\nsystem 50\n",
		"cpu/DIR/cpu.shares": "204\n", "cpu/DIR/cpu.cfs_period_us": "100000\n", "cpu/DIR/cpu.cfs_quota_us": "20000\n",
		"cpu/DIR/cpu.stat":                 "nr_periods 10\nnr_throttled 2\nthrottled_time 3000000\n",
		"memory/DIR/memory.usage_in_bytes": "1000000\n", "memory/DIR/memory.limit_in_bytes": "2000000\n",
		"memory/DIR/memory.stat": "total_cache 600000\ntotal_rss 300000\ntotal_mapped_file 5\ntotal_swap 7\n" +
			"total_inactive_file 400000\ntotal_active_file 200000\n" +
			"pgfault 11\npgmajfault 1\ntotal_pgfault 11\ntotal_pgmajfault 1\n",
		"memory/DIR/memory.max_usage_in_bytes":   "1100000\n",
		"memory/DIR/memory.failcnt":              "4\n",
		"memory/DIR/memory.memsw.limit_in_bytes": "2500000\n",
		"memory/DIR/memory.kmem.usage_in_bytes":  "9\n",
		"memory/DIR/memory.oom_control":          "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"memory/DIR/cgroup.procs":                "1\n2\n", "pids/DIR/pids.current": "3\n", "pids/DIR/pids.max": "max\n",
		"blkio/DIR/blkio.throttle.io_service_bytes_recursive": "259:1 Read 100\n259:1 Write 200\nTotal 300\n",
		"blkio/DIR/blkio.throttle.io_serviced_recursive":      "259:1 Read 3\n259:1 Write 4\nTotal 7\n",
	} {
		files[strings.ReplaceAll(name, "DIR", dir)] = text
	}
	return files
}

// world is a collector on a simulated machine with one pod, and others that have no cgroups.
type world struct {
	*Collector
	t       *testing.T
	runtime *fakeRuntime
	root    string
	volumes map[string]Volume
	images  map[string]string
	others  []Pod
}

func newWorld(t *testing.T, v2 bool) *world {
	t.Helper()
	w := &world{t: t, runtime: &fakeRuntime{}, root: t.TempDir()}
	w.volumes = map[string]Volume{"claim": {Path: w.root, Claim: "c"}}
	h := &Hierarchy{unified: filepath.Join(w.root, "cgroup")}
	const pod1 = "kubepods/pod1"
	for _, dir := range []string{"", "kubepods", pod1, pod1 + "/" + sandboxID, pod1 + "/" + appID, pod1 + "/" + strayID} {
		if v2 {
			tree(t, h.unified, v2Files(dir))
		} else {
			tree(t, h.unified, v1Files(dir))
		}
	}
	if !v2 {
		h.mounts = map[string]string{}
		for _, c := range []string{"cpu", "cpuacct", "memory", "pids", "blkio"} {
			h.mounts[c] = filepath.Join(h.unified, c)
		}
	}
	tree(t, w.root, map[string]string{
		"pods/u1/volumes/kubernetes.io~empty-dir/data/file":             strings.Repeat("x", 10000),
		"pods/u1/volumes/kubernetes.io~empty-dir/data/below/file":       "x",
		"logs/default_web_u1/app/0.log":                                 strings.Repeat("x", 5000),
		"elsewhere/big":                                                 strings.Repeat("x", 1<<20),
		"pods/u1/volumes/kubernetes.io~empty-dir/data/below/also/empty": "",
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID("u1")},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}, Volumes: []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "claim", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
			}},
		}}}
	w.Collector = New(Config{
		SystemOOMs: func() uint64 { return 2 },
		Node:       "n",
		Hierarchy:  h,
		PodsCgroup: "/kubepods",
		Runtime:    w.runtime,
		Pods: func(context.Context) ([]Pod, error) {
			return append(slices.Clone(w.others), Pod{
				Pod:     pod,
				Cgroup:  "/kubepods/pod1",
				Started: time.Unix(1e9, 0),
				Images:  w.images,
				Volumes: w.volumes,
			}), nil
		},
		RootDir: w.root,
		PodsDir: filepath.Join(w.root, "pods"),
		LogsDir: filepath.Join(w.root, "logs"),
		Boot:    time.Unix(1e9, 0),
		Log:     slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	return w
}

func (w *world) text(write func(context.Context, *metrics.Text)) string {
	w.t.Helper()
	text := &metrics.Text{}
	write(context.Background(), text)
	exposition.Parse(w.t, string(text.Bytes()))
	return string(text.Bytes())
}

func bothVersions(t *testing.T, test func(t *testing.T, w *world, v2 bool)) {
	for name, v2 := range map[string]bool{"v1": false, "v2": true} {
		t.Run(name, func(t *testing.T) { test(t, newWorld(t, v2), v2) })
	}
}

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(text, l+"\n") {
			t.Errorf("want the line %q, got\n%s", l, text)
			return
		}
	}
}

func TestCadvisor(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, v2 bool) {
		began := time.Unix(12e8, 0) // of the cgroup, not of the pod
		cgroup := w.cfg.Hierarchy.dir(walked, "kubepods/pod1")
		if err := os.Chtimes(cgroup, began, began); err != nil {
			t.Fatal(err)
		}
		text := w.text(w.WriteCadvisor)
		const pod = `namespace="default",pod="web"`
		kills := map[bool]string{true: "3", false: "1"}[v2] // with the cgroups below it
		app := `container="app",id="/kubepods/pod1/` + appID + `",image="example.com/app:1",name="` + appID + `",` + pod
		pause := `container="",id="/kubepods/pod1/` + sandboxID + `",image="example.com/pause:1",name="` + sandboxID +
			`",` + pod
		wantLines(t, text,
			`container_cpu_usage_seconds_total{`+app+`,cpu="total"} 2`,
			`container_cpu_user_seconds_total{`+app+`} 1.5`,
			`container_cpu_cfs_throttled_seconds_total{`+app+`} 0.003`,
			`container_memory_working_set_bytes{`+app+`} 600000`,
			`container_memory_rss{`+app+`} 300000`,
			`container_memory_cache{`+app+`} 600000`,
			`container_memory_swap{`+app+`} 7`,
			`container_memory_failures_total{`+app+`,failure_type="pgmajfault",scope="hierarchy"} 1`,
			`container_oom_events_total{`+app+`} `+kills,
			`container_oom_events_total{container="",id="/kubepods/pod1",image="",name="",`+pod+`} 1`,
			`container_oom_events_total{container="",id="/",image="",name="",namespace="",pod=""} 2`,
			`container_processes{`+app+`} 2`,
			`container_start_time_seconds{`+app+`} 1000000000`,
			`container_start_time_seconds{container="",id="/kubepods/pod1",image="",name="",`+pod+`} 1200000000`,
			`container_threads_max{`+app+`} 0`,
			`container_spec_memory_limit_bytes{`+app+`} 2000000`,
			`container_spec_cpu_quota{`+app+`} 20000`,
			`container_memory_usage_bytes{`+pause+`} 1000000`,
			`container_memory_usage_bytes{container="",id="/kubepods/pod1",image="",name="",`+pod+`} 1000000`,
			`container_memory_usage_bytes{container="",id="/kubepods",image="",name="",namespace="",pod=""} 1000000`,
			`container_scrape_error 0`,
		)
		if !strings.Contains(text, `container_fs_reads_bytes_total{`+app+`,device="`) {
			t.Errorf("got no container_fs_reads_bytes_total of the container, want it in:\n%s", text)
		}
		if v2 {
			wantLines(t, text, `container_pressure_io_waiting_seconds_total{`+app+`} 5`,
				`container_spec_memory_reservation_limit_bytes{`+app+`} 700000`, `container_memory_failcnt{`+app+`} 0`,
				`container_memory_file_dirty_bytes{`+app+`} 12`, `container_memory_file_writeback_bytes{`+app+`} 13`,
				`container_memory_pgscan_total{`+app+`} 14`, `container_memory_pgsteal_total{`+app+`} 15`,
				`container_memory_workingset_refault_file_total{`+app+`} 16`,
				`container_memory_workingset_refault_anon_total{`+app+`} 17`,
				`container_spec_memory_swap_limit_bytes{`+app+`} 0`)
		} else {
			wantLines(t, text, `container_spec_memory_swap_limit_bytes{`+app+`} 2500000`) // with memory
		}
		if strings.Contains(text, strayID) {
			t.Error("got metrics of a cgroup that the runtime does not know")
		}
		network := "container_network_receive_bytes_total{" + pause
		if !strings.Contains(text, network) && len(interfacesOf(1)) > 0 {
			t.Errorf("got no %s, want it", network)
		}
	})
}

// TestDevicesOfMachine checks that the root cgroup has what is counted for whole block devices, in seconds, each device
// once, and that a device is named as it is mounted now.
func TestDevicesOfMachine(t *testing.T) {
	w := newWorld(t, true)
	devices := parseDiskStats([]byte("259 1 nvme0n1p1 1 2 3 1500 5 6 7 8 9 10 11\n" +
		"8 1 sda1 21 22 23 24 25 26 27 28 29 30 31\n8 0 sda 1 1 1 1 1 1 1 1 1 1 1\n"))
	findMounted(devices, parseMounts(t, "1 0 259:1 / / rw - ext4 /dev/root rw\n"+
		"1 0 8:1 / /data rw - xfs /dev/sda1 rw\n"), "/")
	text := w.text(func(_ context.Context, t *metrics.Text) {
		groups := w.groups(nil, devices)
		for i := range families {
			t.Family(families[i].name, families[i].help, families[i].kind)
			families[i].write(t, &groups[0])
		}
	})
	const root = `{container="",id="/",image="",name="",namespace="",pod="",device="/dev/`
	wantLines(t, text,
		"container_fs_read_seconds_total"+root+`root"} 1.5`,
		"container_fs_io_current"+root+`sda1"} 29`,
		"container_fs_io_time_weighted_seconds_total"+root+`sda1"} 0.031`,
		"container_fs_reads_total"+root+`root"} 3`, // as the cgroup says
		"container_fs_reads_total"+root+`sda1"} 21`,
		"container_fs_writes_bytes_total"+root+`sda1"} 13824`,
	)
	if strings.Contains(text, `/sda"`) || strings.Count(text, "container_fs_reads_total"+root) != 2 {
		t.Errorf("got other devices than those with a mounted file system, or one twice:\n%s", text)
	}
}

// TestDeviceNames checks that a device has the path by which it is mounted in the root cgroup alone. In all others it
// has the name of the kernel, by which dashboards select disks.
func TestDeviceNames(t *testing.T) {
	devices := parseDiskStats([]byte("253 0 dm-0 1 2 3 4 5 6 7 8 9 10 11\n"))
	findMounted(devices, parseMounts(t, "1 0 253:0 / / rw - ext4 /dev/mapper/vg-root rw\n"), "/")
	io := func() Usage { return Usage{IO: []DeviceIO{{Major: 253}, {Major: 9}}} }
	groups := []group{{use: io()}, {use: io()}, {use: io()}}
	nameDevices(groups, devices)
	for i, want := range []string{"/dev/mapper/vg-root", "/dev/dm-0", "/dev/dm-0"} {
		if io := groups[i].use.IO; io[0].Device != want || io[1].Device != "" {
			t.Errorf("cgroup %d: got the devices %+v, want %s and one without a name", i, io, want)
		}
	}
}

// TestFileSystemsOfMachine checks that the root cgroup has the file systems on block devices, and that of the agent's
// root directory if it is on none of them. Volumes and file systems that may not answer are left out, also if that
// directory is a symbolic link.
func TestFileSystemsOfMachine(t *testing.T) {
	w := newWorld(t, true)
	w.cfg.RootDir = filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(w.root, w.cfg.RootDir); err != nil {
		t.Fatal(err)
	}
	devices := []blockDevice{
		{mountedAs: "/dev/sda"},
		{mountedAs: "/dev/sda1", mount: &mountinfo.Info{Mountpoint: "/", FSType: "ext4", Source: "/dev/sda1"}},
		{mount: &mountinfo.Info{Mountpoint: "/tmp", FSType: "fuseblk", Source: "/dev/sdb1"}},
		{mount: &mountinfo.Info{Mountpoint: filepath.Join(w.root, "pods"), FSType: "ext4", Source: "/dev/sdc"}},
		{mount: &mountinfo.Info{Mountpoint: "/is/not/there", FSType: "ext4", Source: "/dev/sdd"}},
	}
	const overlay, disk = "overlay", "/dev/sda1"
	for source, want := range map[string][]string{overlay: {disk, overlay}, disk: {disk}, "": {disk}} {
		root := &mountinfo.Info{Mountpoint: w.root, FSType: "any", Source: source}
		if source == "" {
			root = nil
		}
		var got []string
		for _, f := range w.mountedFSs(devices, root) {
			got = append(got, f.device)
			if f.Capacity == 0 {
				t.Errorf("%s: got %+v, want its size", f.device, f)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("root directory on %q: got the devices %q, want %q", source, got, want)
		}
	}
	const labels = `{container="",id="/",image="",name="",namespace="",pod="",device="`
	text := w.text(w.WriteCadvisor)
	for _, family := range []string{"inodes_free", "inodes_total", "limit_bytes", "usage_bytes"} {
		if !strings.Contains(text, "container_fs_"+family+labels) {
			t.Errorf("got no container_fs_%s of the machine, want it", family)
		}
	}
}

func TestResource(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, v2 bool) {
		text := w.text(w.WriteResource)
		const swap = `container_swap_limit_bytes{container="app",namespace="default",pod="web"} `
		if strings.Contains(text, swap) == v2 || !v2 && !strings.Contains(text, swap+"2500000 ") {
			t.Errorf("swap limit: want none on v2, and 2500000 with memory on v1, in:\n%s", text)
		}
		for _, want := range []string{
			`container_cpu_usage_seconds_total{container="app",namespace="default",pod="web"} 2 1`,
			`container_memory_working_set_bytes{container="app",namespace="default",pod="web"} 600000 1`,
			`pod_cpu_usage_seconds_total{namespace="default",pod="web"} 2 1`,
			"node_memory_working_set_bytes ", "resource_scrape_error 0\n",
			`container_start_time_seconds{container="app",namespace="default",pod="web"} 1000000000` + "\n",
		} {
			if !strings.Contains(text, "\n"+want) {
				t.Errorf("got no %q, want it in:\n%s", want, text)
			}
		}
	})
}

// TestResourceOncePerName checks that a container is not reported twice under one name: neither a pod that is removed
// beside its successor, nor an instance of which processes are left beside the next.
func TestResourceOncePerName(t *testing.T) {
	const nextID = "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
	w := newWorld(t, true)
	for _, dir := range []string{"kubepods/pod1/" + endedID, "kubepods/pod2", "kubepods/pod2/" + nextID} {
		tree(t, w.cfg.Hierarchy.unified, v2Files(dir))
		tree(t, w.cfg.Hierarchy.unified, map[string]string{dir + "/cpu.stat": "usage_usec 9000000\n"})
	}
	w.runtime.more = []*runtimeapi.Container{{
		Id:     nextID,
		Labels: map[string]string{podutil.LabelContainerName: "app"},
		State:  runtimeapi.ContainerState_CONTAINER_RUNNING,
	}}
	const container, pod = `container_cpu_usage_seconds_total{container="app",namespace="default",pod="web"} `,
		`pod_cpu_usage_seconds_total{namespace="default",pod="web"} `
	expect := func(when, cpu string) {
		t.Helper()
		text := w.text(w.WriteResource)
		for _, series := range []string{container, pod} {
			if strings.Count(text, series) != 1 || !strings.Contains(text, series+cpu) {
				t.Errorf("%s: want one sample %s%s, got\n%s", when, series, cpu, text)
			}
		}
	}
	expect("an instance is left", "2")
	pods, err := w.cfg.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old, next := pods[0], pods[0]
	old.Orphaned, next.Cgroup = true, "/kubepods/pod2"
	for _, all := range [][]Pod{{old, next}, {next, old}} {
		w.cfg.Pods = func(context.Context) ([]Pod, error) { return all, nil }
		expect("the pod has a successor", "9")
	}
}

// TestResourceIsSorted checks that the rows of pods and containers have the same order each time.
func TestResourceIsSorted(t *testing.T) {
	var pods []podUse
	for _, name := range []string{"d", "a", "c", "b", "e"} {
		pod := podUse{known: true, Pod: Pod{Pod: &corev1.Pod{}}}
		for _, container := range []string{"y", "x"} {
			pod.containers = append(pod.containers, containerUse{identity: identity{name: container}})
		}
		pod.Namespace, pod.Name = "default", name
		pods = append(pods, pod)
	}
	ofPods, ofContainers := rowsOf(pods)
	for want, rows := range map[int][]row{5: ofPods, 10: ofContainers} {
		sorted := slices.IsSortedFunc(rows, func(a, b row) int { return strings.Compare(a.labels, b.labels) })
		if len(rows) != want || !sorted {
			t.Errorf("got %v, want %d sorted rows", rows, want)
		}
	}
}

// TestWorkingSets checks that only the containers of the pod are measured, not its sandbox.
func TestWorkingSets(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, v2 bool) {
		got := w.WorkingSets(t.Context(), "u1")
		summary, err := w.Summary(t.Context(), Plain)
		if err != nil {
			t.Fatal(err)
		}
		want := int64(*summary.Pods[0].Containers[0].Memory.WorkingSetBytes)
		if len(got) != 1 || got["app"] != want || want == 0 {
			t.Errorf("got %v, want app: %d", got, want)
		}
		if other := w.WorkingSets(t.Context(), "other"); len(other) > 0 {
			t.Errorf("got %v of a pod that is not there", other)
		}
	})
}

// TestNewestInstance checks that a container is reported once, with the usage of its newest instance, while a process
// of an earlier one is left.
func TestNewestInstance(t *testing.T) {
	w := newWorld(t, true)
	tree(t, w.cfg.Hierarchy.unified, v2Files("kubepods/pod1/"+endedID))
	left := "kubepods/pod1/" + endedID + "/memory.current"
	tree(t, w.cfg.Hierarchy.unified, map[string]string{left: "900000000\n"})
	summary, err := w.Summary(t.Context(), Plain)
	if err != nil {
		t.Fatal(err)
	}
	if got := summary.Pods[0].Containers; len(got) != 1 || *got[0].Memory.UsageBytes != 1000000 {
		t.Errorf("summary: got %+v, want app once, with 1000000 bytes", got)
	}
	if got := w.WorkingSets(t.Context(), "u1"); len(got) != 1 || got["app"] > 1000000 {
		t.Errorf("working sets: got %v, want app with at most 1000000 bytes", got)
	}
	text := w.text(w.WriteVolumes)
	if n := strings.Count(text, `kubelet_container_log_filesystem_used_bytes{container="app"`); n != 1 {
		t.Errorf("logs: got %d series of app, want one:\n%s", n, text)
	}
}

// TestRuntimeIsAskedOnce checks that the runtime is asked only about new containers, and that known containers are
// measured although the runtime returns an error, also after only one pod was measured for its eviction. If the error
// hides containers, the families say so.
func TestRuntimeIsAskedOnce(t *testing.T) {
	w := newWorld(t, true)
	if err := os.RemoveAll(filepath.Join(w.root, "cgroup/kubepods/pod1", strayID)); err != nil {
		t.Fatal(err)
	}
	w.text(w.WriteResource)
	w.runtime.err = errors.New("the runtime does not answer")
	w.WorkingSets(t.Context(), "other")
	text := w.text(w.WriteResource)
	wantLines(t, text, "resource_scrape_error 0")
	if !strings.Contains(text, `container="app"`) || w.runtime.lists != 1 {
		t.Errorf("asked %d times, got:\n%s", w.runtime.lists, text)
	}
	tree(t, filepath.Join(w.root, "cgroup"), v2Files("kubepods/pod1/"+strayID))
	text = w.text(w.WriteResource)
	wantLines(t, text, "resource_scrape_error 1")
	if !strings.Contains(text, `container="app"`) || w.runtime.lists != 2 {
		t.Errorf("with a new container: asked %d times, got:\n%s", w.runtime.lists, text)
	}
	text = w.text(w.WriteCadvisor)
	wantLines(t, text, "container_scrape_error 1")
	if !strings.Contains(text, `container="app"`) || len(w.WorkingSets(t.Context(), "u1")) != 1 {
		t.Errorf("with a new container: want the usage of the known one in:\n%s", text)
	}
	w.summary("") // with the known container
}

func TestSummary(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, _ bool) {
		var s api.Summary
		recorder := httptest.NewRecorder()
		request := httptest.NewRequest("GET", "/stats/summary", nil)
		w.SummaryHandler().ServeHTTP(httptest.NewRecorder(), request)
		w.waitForSizes() // no request waits so long
		w.SummaryHandler().ServeHTTP(recorder, request)
		if err := json.Unmarshal(recorder.Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Pods) != 1 || len(s.Pods[0].Containers) != 1 ||
			s.Node.NodeName != "n" || s.Node.Fs == nil || s.Node.Rlimit == nil {
			t.Fatalf("got %s", recorder.Body)
		}
		p, c := s.Pods[0], s.Pods[0].Containers[0]
		if c.Name != "app" || *c.Memory.WorkingSetBytes != 600000 || *c.Memory.AvailableBytes != 1400000 ||
			*c.CPU.UsageCoreNanoSeconds != 2e9 || c.CPU.UsageNanoCores == nil || *c.Rootfs.UsedBytes != 4096 ||
			c.Logs == nil || *c.Logs.UsedBytes < 5000 || *c.Logs.InodesUsed != 1 {
			t.Errorf("container: got %s, want the usage of app", recorder.Body)
		}
		if *s.Node.Runtime.ImageFs.UsedBytes != 1<<20 || s.Node.Runtime.ContainerFs == nil {
			t.Errorf("got no file system of the images or containers, want both in: %s", recorder.Body)
		}
		volumes := map[string]api.VolumeStats{}
		for _, v := range p.VolumeStats {
			volumes[v.Name] = v
		}
		data := volumes["data"]
		if data.UsedBytes == nil || *data.UsedBytes < 10001 || *data.UsedBytes > 1<<20 || *data.InodesUsed != 6 {
			t.Errorf("emptyDir: got %+v, want 6 inodes and 10001 bytes to 1 MiB", data)
		}
		if claim := volumes["claim"]; claim.PVCRef == nil || claim.PVCRef.Name != "c" || claim.CapacityBytes == nil {
			t.Errorf("claim: got %+v, want c with its capacity", claim)
		}
		if *p.EphemeralStorage.UsedBytes < 4096+5000+10001 {
			t.Errorf("ephemeral storage: got %d, want at least 4096+5000+10001", *p.EphemeralStorage.UsedBytes)
		}
		text := w.text(w.WriteVolumes)
		if !strings.Contains(text, `kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="c"} `) ||
			!strings.Contains(text, "kubelet_container_log_filesystem_used_bytes"+
				`{container="app",namespace="default",pod="web",uid="u1"} `) {
			t.Errorf("got no size of the claim or the logs, want both in:\n%s", text)
		}
	})
}

// waitForSizes waits until all places that have been asked for are measured, however busy the machine is.
func (w *world) waitForSizes() {
	w.t.Helper()
	w.disks.mu.Lock()
	places := slices.Collect(maps.Keys(w.disks.sizes))
	w.disks.mu.Unlock()
	if got := w.disks.sizesOf(w.t.Context(), places, time.Minute); len(places) == 0 || len(got) != len(places) {
		w.t.Fatalf("got %d sizes of %d places after a minute, want all", len(got), len(places))
	}
}

// TestCgroup checks what an eviction reads of a pod, and of all pods together.
func TestCgroup(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, v2 bool) {
		use, known := w.Cgroup("/kubepods/pod1")
		if !known || !use.Limited() || use.MemoryLimit != 2000000 || use.WorkingSet != 600000 || use.Threads != 3 {
			t.Errorf("got %+v, %v, want 3 threads that use 600000 of 2000000 bytes", use, known)
		}
		tree(t, w.root, map[string]string{
			"cgroup/memory.max":                   "max\n",
			"cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		})
		if use, known := w.Cgroup("/"); !known || use.Limited() {
			t.Errorf("without a limit: got %+v, %v, want none", use.MemoryUsage, known)
		}
		if use, known := w.Cgroup("/missing"); known || use.Limited() {
			t.Errorf("a missing cgroup: got %+v, want none", use)
		}
	})
}

// TestBirthOfCgroup checks that the start of a cgroup does not move when another one is made in it.
func TestBirthOfCgroup(t *testing.T) {
	root, began := t.TempDir(), time.Unix(1e9, 0)
	for file, h := range map[string]*Hierarchy{
		"cgroup.events":         {unified: root},
		"cgroup.clone_children": NewHierarchy(map[string]string{"memory": root}),
	} {
		tree(t, root, map[string]string{"kubepods/" + file: ""})
		path := filepath.Join(root, "kubepods", file)
		if err := os.Chtimes(path, began, began); err != nil {
			t.Fatal(err)
		}
		if got := h.born("kubepods"); !got.Equal(began) {
			t.Errorf("%s: got %v, want %v", file, got, began)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if got := h.born("kubepods"); !got.After(began) {
			t.Errorf("without %s: got %v, want the time of the directory", file, got)
		}
		if got := h.born("missing"); !got.IsZero() {
			t.Errorf("a missing cgroup: got %v, want none", got)
		}
	}
}

// TestLayersUnknown checks that a container whose writable layer the runtime does not name has no usage of its own,
// instead of that of all containers.
func TestLayersUnknown(t *testing.T) {
	w := newWorld(t, true)
	w.runtime.noStats = true
	s, err := w.Summary(t.Context(), Plain)
	if err != nil {
		t.Fatal(err)
	}
	if root := s.Pods[0].Containers[0].Rootfs; root == nil || root.UsedBytes != nil || root.InodesUsed != nil ||
		root.CapacityBytes == nil {
		t.Errorf("got %+v, want the capacity alone", root)
	}
}

// TestEndedContainer checks that an ended container is not reported, although CRI-O keeps its cgroup.
func TestEndedContainer(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, v2 bool) {
		dir := "kubepods/pod1/" + appID
		tree(t, filepath.Join(w.root, "cgroup"), map[string]string{
			"pids/" + dir + "/pids.current": "0\n", dir + "/cgroup.events": "populated 0\nfrozen 0\n",
		})
		var s api.Summary
		recorder := httptest.NewRecorder()
		w.SummaryHandler().ServeHTTP(recorder, httptest.NewRequest("GET", "/stats/summary", nil))
		if err := json.Unmarshal(recorder.Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Pods) != 1 || len(s.Pods[0].Containers) != 0 {
			t.Errorf("summary: got %s, want one pod without containers", recorder.Body)
		}
		if text := w.text(w.WriteCadvisor); strings.Contains(text, `container="app"`) {
			t.Errorf("/metrics/cadvisor: want no container, got\n%s", text)
		}
	})
}

// TestSilentSandbox checks that the pod's network is read through a process of a container if the sandbox has no
// process, as with CRI-O, also if it is in a cgroup below that of the container, as with crun.
func TestSilentSandbox(t *testing.T) {
	for _, below := range []string{"", "/container"} {
		bothVersions(t, func(t *testing.T, w *world, v2 bool) {
			root, self := filepath.Join(w.root, "cgroup"), strconv.Itoa(os.Getpid())+"\n"
			for _, prefix := range []string{"", "memory/", "cpuacct/"} {
				tree(t, root, map[string]string{prefix + "kubepods/pod1/" + sandboxID + "/cgroup.procs": ""})
				tree(t, root, map[string]string{prefix + "kubepods/pod1/" + appID + "/cgroup.procs": ""})
				tree(t, root, map[string]string{prefix + "kubepods/pod1/" + appID + below + "/cgroup.procs": self})
			}
			pods, err := w.look(t.Context(), Plain)
			if err != nil || len(pods) != 1 {
				t.Fatal(pods, err)
			}
			if got := w.process(&pods[0]); got != os.Getpid() {
				t.Errorf("process in app%s: got %d, want %d", below, got, os.Getpid())
			}
		})
	}
}

// TestWalkStaysInside checks that symbolic links in the path of a volume or in it are not followed, and that a file
// with two hard links is counted once.
func TestWalkStaysInside(t *testing.T) {
	w := newWorld(t, true)
	data := filepath.Join(w.root, "pods/u1/volumes/kubernetes.io~empty-dir/data")
	for link, target := range map[string]string{"link": filepath.Join(w.root, "elsewhere"), "loop": "."} {
		if err := os.Symlink(target, filepath.Join(data, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(data, "file"), filepath.Join(data, "twin")); err != nil {
		t.Fatal(err)
	}
	got, err := walkNow(filepath.Join(w.root, "pods"), "u1/volumes/kubernetes.io~empty-dir/data")
	if err != nil || got.Bytes > 1<<20 || got.Inodes != 8 {
		t.Errorf("got %+v, %v; want less than 1 MiB and 8 inodes", got, err)
	}
	for _, below := range []string{"u1/volumes/kubernetes.io~empty-dir/data/link", "../elsewhere", "/"} {
		if _, err := walkNow(filepath.Join(w.root, "pods"), below); err == nil {
			t.Errorf("%s: got no error, want one", below)
		}
	}
}

func TestRates(t *testing.T) {
	var r rates
	now := time.Now()
	at := func(after time.Duration, cpu uint64) (uint64, bool) {
		return r.note("/c", &Usage{At: now.Add(after), CPUUsage: CPUUsage{CPU: cpu}})
	}
	if _, ok := at(0, 100); ok {
		t.Error("one sample: got a rate, want none")
	}
	if rate, ok := at(time.Second, 100+5e8); !ok || rate != 5e8 {
		t.Errorf("half a CPU: got %d, %v, want 5e8", rate, ok)
	}
	if rate, ok := at(2*time.Second, 1e10); !ok || rate != 5e8 {
		t.Errorf("too soon after the last: got %d, %v, want the last", rate, ok)
	}
	if rate, ok := at(11*time.Second, 100+5e8+1e10); !ok || rate != 1e9 {
		t.Errorf("one CPU: got %d, %v, want 1e9", rate, ok)
	}
	if _, ok := at(12*time.Second, 5); ok {
		t.Error("a counter that fell: got a rate, want none")
	}
	if _, ok := at(time.Hour, 6); ok {
		t.Error("a sample of an hour ago: got a rate, want none")
	}
}

// TestRatesOfGoneCgroups checks that the samples of cgroups that are gone are forgotten, also if all requests are for
// CPU and memory alone, as those of old versions of metrics-server.
func TestRatesOfGoneCgroups(t *testing.T) {
	for _, query := range []string{"", "?only_cpu_and_memory=true"} {
		w := newWorld(t, true)
		w.rates.note("/kubepods/gone", &Usage{At: time.Now().Add(-2 * rateStale)})
		w.SummaryHandler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/stats/summary"+query, nil))
		if _, kept := w.rates.last["/kubepods/gone"]; kept {
			t.Errorf("/stats/summary%s: got a sample of a cgroup that is gone, want none", query)
		}
	}
}

// TestBlockVolume checks that the size of a block volume is exposed, also if its driver does not know it.
func TestBlockVolume(t *testing.T) {
	w := newWorld(t, true)
	device := filepath.Join(w.root, "elsewhere/big") // its end is found like that of a device
	w.volumes["claim"] = Volume{Path: device, Device: true, Claim: "c"}
	text := w.text(w.WriteVolumes)
	for name, want := range map[string]string{"capacity_bytes": "1048576", "used_bytes": "0"} {
		line := "kubelet_volume_stats_" + name + `{namespace="default",persistentvolumeclaim="c"} ` + want + "\n"
		if !strings.Contains(text, line) {
			t.Errorf("got no %q, want it in:\n%s", line, text)
		}
	}
}

// TestManyVolumesHang checks that a request waits for all volumes together as long as for one.
func TestManyVolumesHang(t *testing.T) {
	w := newWorld(t, true)
	pod := w.pod(t)
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		for i := range 50 {
			name := fmt.Sprint("claim", i)
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name})
			w.volumes[name] = Volume{
				Path:  "/no/such/place/" + name,
				Claim: name,
				Ask:   func(context.Context) (f Figures, ok bool) { <-answer; return f, false },
			}
		}
		for what, request := range map[string]func(){
			"/metrics":       func() { w.text(w.WriteVolumes) },
			"/stats/summary": func() { _, _ = w.Summary(t.Context(), Plain) },
		} {
			began := time.Now()
			request()
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s: took %s, want less than a second", what, took)
			}
		}
		close(answer)
		synctest.Wait()
	})
}

// TestDriverThatHangs checks that a request does not wait long for a driver that does not answer, and that the driver
// is asked once.
func TestDriverThatHangs(t *testing.T) {
	var f faraway
	asked, answer := make(chan struct{}, 9), make(chan struct{})
	v := Volume{Path: t.TempDir(), Ask: func(context.Context) (Figures, bool) {
		asked <- struct{}{}
		<-answer
		return Figures{Capacity: 10, Used: 4}, true
	}}
	for range 3 {
		f.refresh([]Volume{v})
		if got := f.read(v); got.known {
			t.Errorf("got figures before the answer: %+v", got)
		}
	}
	f.mu.Lock()
	done := f.all[v.Path].done
	f.mu.Unlock()
	close(answer)
	<-done
	if got := f.read(v); got.Capacity != 10 || got.Used != 4 || len(asked) != 1 {
		t.Errorf("got %+v after %d calls of the driver", got, len(asked))
	}
}

// TestRuntimeThatHangs checks that the summary has the values that are known without the runtime if it does not answer,
// and comes before a client gives up, also if the runtime is to be asked for new containers and for those of a virtual
// machine.
func TestRuntimeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, true)
		if _, err := w.Summary(t.Context(), Plain); err != nil {
			t.Fatal(err)
		}
		w.runtime.hangs = true
		guest := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "guest", UID: "guest"}}
		w.others = []Pod{{Pod: guest, Images: map[string]string{"guest": "example.com/app:1"}}}
		var log bytes.Buffer
		w.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		began := time.Now()
		s, err := w.Summary(t.Context(), Plain)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the summary took %s, want at most 5s", took)
		}
		if len(s.Pods) != 2 || len(s.Pods[1].Containers) != 1 || s.Node.Fs == nil {
			t.Errorf("got %+v, want both pods, one with its container, and the node's file system", s)
		}
		if strings.Count(log.String(), "missing") != 3 {
			t.Errorf("got the log %s, want what is missing: names, the virtual machine, layers", log.String())
		}
	})
}
