package node

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/host/machine"
)

func TestReadMachine(t *testing.T) {
	got, err := readMachine(machineFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	want := Machine{
		CPUs:      4,
		Memory:    8 << 30,
		Swap:      1 << 20,
		HugePages: map[uint64]uint64{2 << 20: 1 << 30, 1 << 30: 0},
		Identity: machine.Identity{
			MachineID:  "0123456789abcdef0123456789abcdef",
			SystemUUID: "UUID-1",
			BootID:     "boot-1",
			Kernel:     "6.18.0-test",
			OSImage:    "Debian GNU/Linux 12 (bookworm)",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestReadMachineWithoutIdentity reads an Arm board without DMI, os-release or huge pages.
func TestReadMachineWithoutIdentity(t *testing.T) {
	root := machineFiles(t)
	for _, path := range []string{"sys/class/dmi", "sys/kernel/mm/hugepages", "etc/os-release"} {
		if err := os.RemoveAll(filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := readMachine(root)
	if err != nil || m.SystemUUID != m.MachineID || m.OSImage != "Linux" || len(m.HugePages) != 0 {
		t.Errorf("got %+v, %v, want the machine ID as system UUID, Linux, and no huge pages", m, err)
	}
	for path, text := range map[string]string{
		"sys/devices/system/cpu/online": "0-\n",
		"proc/meminfo":                  "SwapTotal: 1024 kB\n",
	} {
		root := machineFiles(t)
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readMachine(root); err == nil {
			t.Errorf("%s is %q: got no error, want one", path, text)
		}
		if err := os.Remove(filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
		if _, err := readMachine(root); err == nil {
			t.Errorf("without %s: got no error, want one", path)
		}
	}
}

// TestReadUserNamespace checks that a map of user IDs that is not that of the machine is recognized.
func TestReadUserNamespace(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n":                                   false,
		"         0     100000      65536\n":                                   true,
		"         0       1000          1\n         1     100000      65536\n": true,
		"": true,
	} {
		root := machineFiles(t)
		file := filepath.Join(root, "proc/self/uid_map")
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if m, err := readMachine(root); err != nil || m.UserNamespace != want {
			t.Errorf("%q: got %v, %v, want %v", text, m.UserNamespace, err, want)
		}
	}
}

// TestReadThisMachine reads the real files.
func TestReadThisMachine(t *testing.T) {
	m, err := readMachine("/")
	if err != nil {
		t.Fatal(err)
	}
	if m.CPUs < runtime.NumCPU() || m.Memory < 64<<20 || m.Kernel == "" || len(m.BootID) != 36 {
		t.Errorf("got %+v, want %d CPUs, memory, a kernel and a boot ID of 36 characters", m, runtime.NumCPU())
	}
}

func quantities(list corev1.ResourceList) map[string]string {
	all := map[string]string{}
	for name, q := range list {
		all[string(name)] = q.String()
	}
	return all
}

// TestAllocatable checks the sums. Percentages have single precision, as in the kubelet (0.1 is a little more than a
// tenth).
func TestAllocatable(t *testing.T) {
	m := Machine{CPUs: 2, Memory: 24602016 << 10, HugePages: map[uint64]uint64{2 << 20: 200 << 20, 1 << 30: 0}}
	total := capacity(m, 61202244<<10, 110, 0)
	want := map[string]string{
		"cpu":               "2",
		"memory":            "24602016Ki",
		"pods":              "110",
		"ephemeral-storage": "62671097856",
		"hugepages-2Mi":     "200Mi",
		"hugepages-1Gi":     "0",
	}
	if diff := cmp.Diff(want, quantities(total)); diff != "" {
		t.Errorf("capacity (-want +got):\n%s", diff)
	}
	mi := resource.MustParse("100Mi")
	held := []EvictionThreshold{{Resource: "memory", Quantity: &mi}, {Resource: "ephemeral-storage", Percentage: 10}}
	kube := corev1.ResourceList{
		"cpu":    resource.MustParse("100m"),
		"memory": resource.MustParse("1Gi"),
		"pid":    resource.MustParse("100"),
	}
	system := corev1.ResourceList{"cpu": resource.MustParse("50m"), "ephemeral-storage": resource.MustParse("1Gi")}
	got := allocatable(total, []corev1.ResourceList{kube, system}, held)
	want = map[string]string{
		"cpu":               "1850m",
		"memory":            "23246240Ki",
		"pods":              "110",
		"ephemeral-storage": "55330246154",
		"hugepages-2Mi":     "200Mi",
		"hugepages-1Gi":     "0",
	}
	if diff := cmp.Diff(want, quantities(got)); diff != "" {
		t.Errorf("allocatable (-want +got):\n%s", diff)
	}
	greedy := corev1.ResourceList{"memory": resource.MustParse("1Ti")}
	if q := allocatable(total, []corev1.ResourceList{greedy}, nil)["memory"]; !q.IsZero() {
		t.Errorf("memory with a reservation of 1Ti: got %s, want 0", q.String())
	}
	if q := capacity(m, 0, 110, 10)["pods"]; q.Value() != 20 {
		t.Errorf("pods: got %s, want 20", q.String())
	}
}
