//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// featurePod has a user namespace, an image volume, and a sysctl.
const featurePod = `
apiVersion: v1
kind: Pod
metadata: {name: %[3]s}
spec:
  nodeName: %[1]s
  hostUsers: false
  terminationGracePeriodSeconds: 1
  securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "7"}]}
  volumes:
  - {name: image, image: {reference: %[2]q, pullPolicy: IfNotPresent}}
  - {name: data, emptyDir: {}}
  containers:
  - {name: app, image: %[2]q, command: [sh, -c, "touch /data/mine; sleep 3600"],
     volumeMounts: [{name: image, mountPath: /image}, {name: image, mountPath: /bin2, subPath: bin}, {name: data,
       mountPath: /data}]}
`

// TestLongFeatures runs pods with user namespaces, image volumes and sysctls, and checks them from inside. After a
// kill of the agent a new pod must not get the IDs of a running one.
func TestLongFeatures(t *testing.T) {
	clean(t)
	ids := map[string]string{}
	for _, name := range []string{"first", "second"} {
		apply(t, fmt.Sprintf(featurePod, node().Name, testbed.BusyboxImage, name))
		waitReady(t, name)
		fields := strings.Fields(inside(t, name, "app", "cat", "/proc/self/uid_map"))
		if len(fields) != 3 || fields[0] != "0" || fields[1] == "0" || fields[2] != "65536" {
			t.Errorf("pod %s: user ID map: got %q, want 65536 IDs from 0 that are not mapped to 0", name, fields)
			continue
		}
		ids[name] = fields[1]
		expect(t, name, "app", "id -u; stat -c %u:%g /data/mine /etc/hosts", "0\n0:0\n0:0")
		expect(t, name, "app", "ls /image/bin/busybox /bin2/busybox; touch /image/x 2>/dev/null || echo read-only",
			"/bin2/busybox\n/image/bin/busybox\nread-only")
		expect(t, name, "app", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "7")
	}
	if ids["first"] == ids["second"] {
		t.Errorf("user IDs of the two pods: got both from %s, want different ranges", ids["first"])
	}
	killAgent(t)
	kubectl(t, "delete", "pod", "second", "--wait=true")
	apply(t, fmt.Sprintf(featurePod, node().Name, testbed.BusyboxImage, "third"))
	waitReady(t, "third")
	if got := strings.Fields(inside(t, "third", "app", "cat", "/proc/self/uid_map"))[1]; got == ids["first"] {
		t.Errorf("user IDs of a pod created after a kill of the agent: got those of another pod, from %s", got)
	}
}

// TestLongRefusals checks that the node rejects what it does not allow or cannot enforce, with the reasons of the
// kubelet.
func TestLongRefusals(t *testing.T) {
	clean(t)
	enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	for _, c := range []struct{ name, spec, reason, message string }{
		{"sysctl", `securityContext: {sysctls: [{name: kernel.msgmax, value: "7"}]}`, "SysctlForbidden",
			`"kernel.msgmax" not allowlisted`},
		{"apparmor", `securityContext: {appArmorProfile: {type: RuntimeDefault}}`, "AppArmor",
			"AppArmor is not enabled on the host"},
	} {
		if c.reason == "AppArmor" && strings.HasPrefix(string(enabled), "Y") {
			continue // this machine can enforce it
		}
		apply(
			t,
			fmt.Sprintf(
				"{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeName: %s, %s, containers: [{name: app, image: %q}]}}",
				c.name,
				node().Name,
				c.spec,
				testbed.BusyboxImage,
			),
		)
		pod := waitPod(t, c.name, "is rejected",
			func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if pod.Status.Reason != c.reason || !strings.Contains(pod.Status.Message, c.message) {
			t.Errorf("pod %s: got %s: %s, want %s: …%s…", c.name, pod.Status.Reason, pod.Status.Message, c.reason, c.message)
		}
	}
}
