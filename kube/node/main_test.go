package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var readyRuntime = Runtime{
	Name:    "containerd",
	Version: "2.4.2",
	Ready:   RuntimeCondition{OK: true},
	Network: RuntimeCondition{OK: true},
}

// machineFiles writes the files of a small machine: 4 CPUs, 8 GiB, 512 huge pages of 2 MiB, boot ID boot-1.
func machineFiles(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		"sys/devices/system/cpu/online": "0-3\n",
		"proc/meminfo":                  "MemTotal:        8388608 kB\nMemFree: 1 kB\nSwapTotal:       1024 kB\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "512\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
		"etc/machine-id":                 "0123456789abcdef0123456789abcdef\n",
		"sys/class/dmi/id/product_uuid":  "UUID-1\n",
		"proc/sys/kernel/random/boot_id": "boot-1\n",
		"proc/sys/kernel/osrelease":      "6.18.0-test\n",
		"etc/os-release":                 "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
	} {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// bed is a Reporter that runs against a fake API server.
type bed struct {
	*Reporter
	t      testing.TB
	api    *fakeAPI
	mu     sync.Mutex
	events []string // reasons
}

func (b *bed) reasons() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.events
	b.events = nil
	return all
}

func testConfig(t testing.TB) Config {
	return Config{
		Name:    testNode,
		Changed: func(*corev1.Node) {},
		Registration: Registration{
			Register:     true,
			Labels:       map[string]string{"mine": "yes"},
			AttachDetach: true,
		},
		KubeletPort:    10250,
		MachineRoot:    machineFiles(t),
		RootDir:        usedRoot(t),
		MaxPods:        110,
		MaxImages:      50,
		KubeletVersion: "v1.36.3+nodelet.test",

		ShowUserNamespace: true,

		UserAgent: "test",
		Intervals: Intervals{
			StatusInterval: 10 * time.Second,
			ReportInterval: 5 * time.Minute,
			LeaseDuration:  40 * time.Second,
		},
		Event: func(string, string, string) {},
		Log:   slog.New(slog.DiscardHandler),
	}
}

// pressure says that these conditions hold, and no other.
func pressure(holding ...corev1.NodeConditionType) map[corev1.NodeConditionType]bool {
	all := map[corev1.NodeConditionType]bool{}
	for _, p := range pressures {
		all[p.condition] = slices.Contains(holding, p.condition)
	}
	return all
}

// start runs a Reporter until the test ends. Call it in a synctest bubble.
func start(t *testing.T, api *fakeAPI, change func(*Config)) *bed {
	t.Helper()
	b := &bed{t: t, api: api}
	cfg := testConfig(t)
	cfg.Event = func(_, reason, _ string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, reason)
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if b.Reporter, err = New(cfg, api.client(t).Core, api.config(), api.renew); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

// usedRoot returns a root directory with the directory of a pod.
func usedRoot(t testing.TB) string {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", "uid"), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

// setRuntime is an answer of the runtime, which lists its pods, too.
func (b *bed) setRuntime(s Runtime) {
	b.Reporter.setRuntime(s)
	b.RuntimeListed()
}

func (b *bed) ready() corev1.NodeCondition {
	b.t.Helper()
	n := b.api.get()
	if n == nil {
		b.t.Fatal("got no Node object, want one")
	}
	c := find(n.Status.Conditions, corev1.NodeReady)
	if c == nil {
		b.t.Fatalf("Ready: got no such condition in %+v, want one", n.Status.Conditions)
	}
	return *c
}

// settle waits for d and then until all goroutines of the bubble block.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// existing returns a Node object that an earlier run of the agent and other clients have written.
func existing(ready corev1.ConditionStatus) *corev1.Node {
	resources := corev1.ResourceList{
		"example.com/dongle": resource.MustParse("2"),
		"hugepages-32Mi":     resource.MustParse("0"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        testNode,
			UID:         "old",
			Labels:      map[string]string{"team": "a", corev1.LabelHostname: "stale"},
			Annotations: map[string]string{providedIPAnnotation: "192.0.2.1", "other": "x"},
		},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated"},
				{
					Type:               corev1.NodeReady,
					Status:             ready,
					Reason:             "KubeletReady",
					Message:            "kubelet is posting ready status",
					LastTransitionTime: metav1.NewTime(time.Unix(1000, 0)),
				},
			},
			Capacity:    resources,
			Allocatable: resources.DeepCopy(),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
				{Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
			},
			NodeInfo:        corev1.NodeSystemInfo{BootID: "boot-0", KubeProxyVersion: "v1.30.0"},
			VolumesInUse:    []corev1.UniqueVolumeName{"kubernetes.io/csi/x^1"},
			VolumesAttached: []corev1.AttachedVolume{{Name: "kubernetes.io/csi/x^1"}},
		},
	}
}
