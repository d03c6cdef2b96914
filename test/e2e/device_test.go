//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nodelet/nodelet/test/plugins/devices/fake"
	"github.com/nodelet/nodelet/test/testbed"
)

const fakeResource = "nodelet.test/fake"

// devicePodYAML is a pod that runs with that number of devices until the file /end exists. With an empty nodeName the
// scheduler binds it.
func devicePodYAML(name string, devices int, nodeName, restart string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: %q
  restartPolicy: %s
  containers:
  - name: app
    image: %s
    command: [sh, -c,
      'for d in $(echo $%s | tr , " "); do test -c /dev/$d || exit 1; done;
      cat /fake/card && while [ ! -f /end ]; do sleep 1; done']
    resources: {limits: {%s: %d}}
`, name, nodeName, restart, testbed.BusyboxImage, fake.Variable, fakeResource, devices)
}

// devicePlugin is a device plugin that the test stops and starts.
type devicePlugin struct {
	config fake.Config
	plugin *fake.Plugin
}

// start starts the plugin, registers it, and waits until the node shows its four devices.
func (d *devicePlugin) start(t *testing.T) {
	t.Helper()
	var err error
	if d.plugin, err = fake.Start(d.config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := d.plugin.Register(ctx); err != nil {
		t.Fatal(err)
	}
	waitDevices(t, "4 4")
}

func (d *devicePlugin) close() { d.plugin.Close() }

// followAgent does what plugins do after a restart of the agent, which removes their sockets: it starts the plugin
// again.
func (d *devicePlugin) followAgent(t *testing.T) {
	t.Helper()
	eventually(t, "the agent has removed the plugin's socket", func() (string, bool) {
		_, err := os.Lstat(filepath.Join(node().RootDir, "device-plugins", "nodelet.test-fake.sock"))
		return fmt.Sprint(err), errors.Is(err, fs.ErrNotExist)
	})
	d.close()
	d.start(t)
}

// waitDevices waits until the Node object shows want: the capacity and the allocatable number of devices, as "4 4".
func waitDevices(t *testing.T, want string) {
	t.Helper()
	escaped := strings.ReplaceAll(fakeResource, ".", `\.`)
	eventually(t, "the node shows its devices", func() (string, bool) {
		out, err := tb.Kubectl(context.Background(), "get", "node", node().Name, "-o",
			fmt.Sprintf("jsonpath={.status.capacity.%s} {.status.allocatable.%s}", escaped, escaped))
		return fmt.Sprint(out, err), err == nil && strings.TrimSpace(out) == want
	})
}

// podResources returns what the pod resources API reports to exporters of metrics.
func podResources(t *testing.T) []*podresources.PodResources {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(node().RootDir, "pod-resources/kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return list.PodResources
}

// allocatedDevices lists which container has which devices.
func allocatedDevices(t *testing.T) string {
	t.Helper()
	var all []string
	for _, pod := range podResources(t) {
		for _, c := range pod.Containers {
			var ids []string
			for _, d := range c.Devices {
				ids = append(ids, d.DeviceIds...)
			}
			if slices.Sort(ids); len(ids) > 0 {
				all = append(all, pod.Name+"/"+c.Name+"="+strings.Join(ids, ","))
			}
		}
	}
	return strings.Join(all, " ")
}

func devicesOf(t *testing.T, pod string) string {
	t.Helper()
	return strings.TrimSpace(kubectl(t, "exec", pod, "--", "sh", "-c", "echo $"+fake.Variable))
}

// TestLongDevices runs pods with devices of a device plugin while plugin and agent are killed. No device is ever
// allocated to two pods, and a running pod keeps its devices.
func TestLongDevices(t *testing.T) {
	clean(t)
	card := t.TempDir()
	if err := os.WriteFile(filepath.Join(card, "card"), []byte("fake\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := &devicePlugin{config: fake.Config{
		Root:     node().RootDir,
		Resource: fakeResource,
		Devices:  []string{"d1", "d2", "d3", "d4"},
		Mount:    card,
	}}
	d.start(t)
	t.Cleanup(func() { d.close() })

	apply(t, devicePodYAML("one", 2, "", "Always"))
	before := containerStatus(waitReady(t, "one"), "app")
	if got := devicesOf(t, "one"); got != "d1,d2" {
		t.Errorf("devices of the first pod: got %q, want %q", got, "d1,d2")
	}
	if got := allocatedDevices(t); got != "one/app=d1,d2" {
		t.Errorf("pod resources API: got %q, want %q", got, "one/app=d1,d2")
	}

	t.Log("the agent is killed: allocated devices stay allocated")
	killAgent(t)
	d.followAgent(t)
	apply(t, devicePodYAML("greedy", 3, node().Name, "Always"))
	p := waitPod(t, "greedy", "is rejected",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	want := "Allocate failed due to requested number of devices unavailable " +
		"for nodelet.test/fake. Requested: 3, Available: 2, which is unexpected"
	if p.Status.Reason != "UnexpectedAdmissionError" || !strings.HasSuffix(p.Status.Message, want) {
		t.Errorf("rejection: got %s: %s, want UnexpectedAdmissionError: …%s", p.Status.Reason, p.Status.Message, want)
	}
	apply(t, devicePodYAML("two", 2, "", "Never"))
	waitReady(t, "two")
	if got := devicesOf(t, "two"); got != "d3,d4" {
		t.Errorf("devices of the second pod: got %q, want %q", got, "d3,d4")
	}
	apply(t, devicePodYAML("three", 1, "", "Always"))
	waitPod(t, "three", "cannot be scheduled", func(p *corev1.Pod) bool {
		return len(p.Status.Conditions) > 0 && strings.Contains(p.Status.Conditions[0].Message, "Insufficient "+fakeResource)
	})

	t.Log("the plugin stops: no device is allocatable, and a restarted container keeps its devices")
	d.close()
	waitDevices(t, "4 0")
	after := containerStatus(getPod(t, "one"), "app")
	if after.ContainerID != before.ContainerID || after.RestartCount > 0 {
		t.Errorf("container of the first pod: got %+v, want %+v", after, before)
	}
	letEnd(t, "one", "app", "/end")
	waitPod(t, "one", "runs again", func(p *corev1.Pod) bool {
		return containerStatus(p, "app").RestartCount > 0 && ready(p)
	})
	if got := devicesOf(t, "one"); got != "d1,d2" {
		t.Errorf("devices of the first pod after a restart: got %q, want %q", got, "d1,d2")
	}

	t.Log("the plugin starts again, and the devices of a deleted pod are free")
	d.start(t)
	kubectl(t, "delete", "pod", "one", "greedy", "--timeout=5m")
	waitReady(t, "three")
	if got := devicesOf(t, "three"); got != "d1" {
		t.Errorf("devices of the third pod: got %q, want %q", got, "d1")
	}

	t.Log("plugin and agent stop at the same time: running pods are not disturbed")
	d.close()
	stopAgent(t, unix.SIGKILL)
	startAgent(t)
	waitDevices(t, "0 0") // an agent has no capacity before the plugin has registered
	for _, pod := range []string{"two", "three"} {
		if c := containerStatus(getPod(t, pod), "app"); c.RestartCount > 0 || !c.Ready {
			t.Errorf("container of pod %s: got %+v, want it ready without a restart", pod, c)
		}
	}
	d.start(t)

	t.Log("the devices of a pod that has terminated are free, although its object still exists")
	letEnd(t, "two", "app", "/end")
	waitPod(t, "two", "has terminated",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	apply(t, devicePodYAML("four", 2, "", "Always"))
	waitReady(t, "four")
	if got := devicesOf(t, "four"); got != "d2,d3" {
		t.Errorf("devices of the fourth pod: got %q, want %q", got, "d2,d3")
	}
	kubectl(t, "delete", "pod", "two", "three", "four", "--timeout=5m")
}
