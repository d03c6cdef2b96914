//go:build e2e

package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/test/testbed"
)

// soon is the longest time until a container sees a change of an object, also on a busy machine. An agent that looks
// once a minute, as the kubelet does, does not keep it for all the changes of this test.
const soon = 45 * time.Second

// TestEverything runs one pod that uses nearly all fields of a pod. It compares what the containers see with the
// spec, and the status and events with those that the kubelet reports for the same pod.
func TestEverything(t *testing.T) {
	clean(t)
	sameAgent(t)
	dir := t.TempDir()
	apply(t, fill(t, "testdata/everything.yaml", dir))
	waitPod(t, "everything", "runs and waits for its readiness probe", func(p *corev1.Pod) bool {
		return containerStatus(p, "main").Ready && containerStatus(p, "web").Ready &&
			containerStatus(p, "gated").State.Running != nil
	})
	if *golden {
		compareWithKubelet(t)
		return
	}
	t.Run("order", order)
	t.Run("environment", func(t *testing.T) { environment(t, getPod(t, "everything")) })
	t.Run("process", process)
	t.Run("limits", func(t *testing.T) { limits(t, getPod(t, "everything")) })
	t.Run("volumes", func(t *testing.T) { volumesSeen(t, dir) })
	t.Run("token", token)
	t.Run("network", func(t *testing.T) { network(t, getPod(t, "everything")) })
	t.Run("readiness", readiness)
	t.Run("updates", updates)
	compareWithKubelet(t)
	t.Run("end", func(t *testing.T) {
		text, _ := os.ReadFile(filepath.Join(dir, "made/ended"))
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(lines) != 3 || lines[2] != "helper ended" ||
			!hasAll(string(text), []string{"preStop main\n", "preStop web\n"}) {
			t.Errorf("lines that the pod wrote while it terminated: got %q, want both preStop hooks, then the sidecar", lines)
		}
	})
}

// fill reads a file with objects and replaces the variables for images, the node, and a directory of the host.
func fill(t *testing.T, file, dir string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("${PAUSE}", testbed.PauseImage, "${BUSYBOX}", testbed.BusyboxImage,
		"${AGNHOST}", testbed.AgnhostImage,
		"${NODE}", node().Name, "${DIR}", dir).Replace(string(text))
}

// expect fails the test unless a shell line in a container prints want.
func expect(t *testing.T, pod, container, line, want string) {
	t.Helper()
	got, err := tryInside(t, pod, container, "sh", "-c", line)
	if err != nil {
		t.Errorf("%s in container %s: %v", line, container, err)
	} else if got != want {
		t.Errorf("%s in container %s: got %q, want %q", line, container, got, want)
	}
}

func order(t *testing.T) {
	expect(t, "everything", "main", "cat /scratch/order", "one\nhelper\ntwo\nmain")
	expect(t, "everything", "main", "sort /scratch/hooks", "exec main\nhttp web")
	expect(t, "everything", "main", "cat /scratch/helper", "everything")
	message := containerStatus(getPod(t, "everything"), "one").State.Terminated.Message
	if message != "the bed is made\n" {
		t.Errorf("termination message: got %q, want %q", message, "the bed is made\n")
	}
}

func environment(t *testing.T, p *corev1.Pod) {
	want := map[string]string{
		"LITERAL": "hello", "GREETING": "hello world", "ESCAPED": "$(LITERAL)", "POD_NAME": "everything",
		"POD_UID": string(p.UID),
		"POD_IP":  p.Status.PodIP, "HOST_IP": node().IP, "NODE_NAME": node().Name, "COLOR": "blue", "CPU_LIMIT": "500",
		"WEB_MEMORY": "16",
		"FROM_MAP":   "from the map", "FROM_SECRET": "hush", "MAP_ONE": "1", "MAP_TWO": "2", "HOSTNAME": "everything",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "BESIDE_EVERYTHING_SERVICE_PORT": "81",
	}
	got := map[string]string{}
	for line := range strings.Lines(inside(t, "everything", "main", "env")) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\n"), "=")
		got[name] = value
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("variable %s: got %q, want %q", name, got[name], value)
		}
	}
	for _, name := range []string{"NOT_THERE", "ONE"} {
		if value, found := got[name]; found {
			t.Errorf("variable %s: got %q, want it unset", name, value)
		}
	}
}

// process checks command and arguments, user and groups (50000 comes from the image), a read-only root, and
// capabilities.
func process(t *testing.T) {
	expect(t, "everything", "main", "cat /scratch/args", "hello world")
	expect(t, "everything", "web", "id -u; id -g; id -G", "1000\n3000\n3000 2000 50000")
	expect(t, "everything", "web", "touch /x 2>/dev/null || echo read-only", "read-only")
	expect(t, "everything", "web", "grep -E '^(CapBnd|NoNewPrivs)' /proc/1/status",
		"CapBnd:\t0000000000000000\nNoNewPrivs:\t1")
}

// limits checks the cgroups of the pod and its main container.
func limits(t *testing.T, p *corev1.Pod) {
	_, id, _ := strings.Cut(containerStatus(p, "main").ContainerID, "://")
	pod, main := node().PodCgroup(corev1.PodQOSBurstable, p.UID), node().ContainerCgroup(corev1.PodQOSBurstable, p.UID, id)
	for _, c := range []struct{ v1, v2, cgroup, want1, want2 string }{
		{"memory/memory.limit_in_bytes", "memory.max", main, strconv.Itoa(64 << 20), strconv.Itoa(64 << 20)},
		{"cpu/cpu.cfs_quota_us", "cpu.max", main, "50000", "50000 100000"},
		{"cpu/cpu.shares", "", main, "102", ""},
		{"cpu/cpu.shares", "", pod, "102", ""},
	} {
		controller, file := filepath.Split(c.v1)
		path, want := filepath.Join("/sys/fs/cgroup", controller, c.cgroup, file), c.want1
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			path, want = filepath.Join("/sys/fs/cgroup", c.cgroup, c.v2), c.want2
		}
		if text, err := os.ReadFile(path); want != "" && strings.TrimSpace(string(text)) != want {
			t.Errorf("%s: got %q (%v), want %s", path, text, err, want)
		}
	}
}

func volumesSeen(t *testing.T, dir string) {
	for _, c := range []struct{ line, want string }{
		{"cat /config/plain /etc/plain", "from the mapfrom the map"},
		{"cat /secret/word; stat -Lc ' %a %g' /secret/word", "hush 440 2000"},
		{"touch /secret/x 2>/dev/null || echo read-only", "read-only"},
		{"cat /downward/labels /downward/cpu", "color=\"blue\"500"},
		{"cat /all/deep/er/plain /all/word /all/note", "from the maphushfirst"},
		{"readlink /config/plain; readlink /all/deep", "..data/plain\n..data/deep"},
		{"readlink /all/..data | cut -c1-4", "..20"},
		{"grep -c ' /memory tmpfs .*size=1024k' /proc/mounts", "1"},
		{"stat -c '%a %g' /scratch", "2777 2000"},
		{"touch /sub/x && ls /scratch/of-everything", "x"},
		{"echo from inside >/host-file", ""},
	} {
		expect(t, "everything", "main", c.line, c.want)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "file")); string(text) != "from inside\n" {
		t.Errorf("file of the host: got %q (%v), want %q", text, err, "from inside\n")
	}
}

// token checks that the projected token is for the requested audience and this pod.
func token(t *testing.T) {
	parts := strings.Split(inside(t, "everything", "main", "cat", "/all/token"), ".")
	if len(parts) != 3 {
		t.Fatalf("parts of the token: got %d, want 3", len(parts))
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || !strings.Contains(string(claims), `"aud":["tester"]`) ||
		!strings.Contains(string(claims), `"name":"everything"`) {
		t.Errorf("claims of the token: got %s (%v), want audience tester and pod everything", claims, err)
	}
	expect(t, "everything", "main", "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace", space)
	expect(t, "everything", "main", "grep -c BEGIN /var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "1")
}

func network(t *testing.T, p *corev1.Pod) {
	r, err := http.Get("http://" + node().IP + ":18080/hostname")
	if err != nil {
		t.Fatalf("host port: %v", err)
	}
	defer r.Body.Close()
	if name, err := io.ReadAll(r.Body); string(name) != "everything" {
		t.Errorf("answer on the host port: got %q (%v), want %q", name, err, "everything")
	}
	expect(t, "everything", "main", "tail -1 /etc/hosts", p.Status.PodIP+"\teverything")
	expect(t, "everything", "main", "head -1 /etc/resolv.conf",
		"search default.svc.cluster.local svc.cluster.local cluster.local testbed.example")
}

// readiness makes the readiness probe succeed, fail and succeed again.
func readiness(t *testing.T) {
	if ready(getPod(t, "everything")) {
		t.Error("the pod before its readiness probe succeeds: got Ready, want not Ready")
	}
	for _, change := range []string{"touch", "rm", "touch"} {
		inside(t, "everything", "gated", change, "/scratch/open")
		waitPod(t, "everything", "follows its readiness probe after "+change,
			func(p *corev1.Pod) bool { return ready(p) == (change == "touch") })
	}
}

// updates changes the objects behind volumes. The files of a volume change together: no file is ever missing, and no
// reader sees old and new files at the same time.
func updates(t *testing.T) {
	for i := 2; i < 8; i++ {
		n := strconv.Itoa(i)
		edited(t, "configmaps", "everything", `{"data":{"a":"`+n+`","b":"`+n+`"}}`, "cat /config/a", n)
		secret := base64.StdEncoding.EncodeToString([]byte(n))
		edited(t, "secrets", "everything", `{"data":{"word":"`+secret+`"}}`, "cat /secret/word /all/word", n+n)
		edited(t, "pods", "everything", `{"metadata":{"labels":{"color":"`+n+`"},"annotations":{"note":"`+n+`"}}}`,
			"cat /downward/labels /all/note", `color="`+n+`"`+n)
	}
	expect(t, "everything", "main", "cat /scratch/torn 2>/dev/null; cat /etc/plain; echo; echo $COLOR",
		"from the map\nblue")
}

// edited patches an object and waits until a shell line in the main container prints want.
func edited(t *testing.T, resource, name, patch, line, want string) {
	t.Helper()
	err := api.Core.Patch(types.MergePatchType).
		Namespace(space).
		Resource(resource).
		Name(name).
		Body([]byte(patch)).
		Do(t.Context()).
		Error()
	if err != nil {
		t.Fatalf("edit %s %s: %v", resource, name, err)
	}
	within(t, soon, fmt.Sprintf("the container sees the edited %s", resource), func() (string, bool) {
		got, err := tryInside(t, "everything", "main", "sh", "-c", line)
		return fmt.Sprint(got, err), got == want
	})
}

// compareWithKubelet compares the status of the running pod, that of the terminated pod, and all events with the
// kubelet's.
func compareWithKubelet(t *testing.T) {
	shell(t, "everything", "gated", "touch /scratch/open")
	running := waitReady(t, "everything")
	compareGolden(t, "everything.running.json", running)
	ended := lastOf(t, "everything", func() { kubectl(t, "delete", "pod", "everything", "--timeout=5m") })
	compareGolden(t, "everything.ended.json", ended)
	eventually(t, "all events exist", func() (string, bool) {
		all := strings.Join(events(ended.UID), "\n")
		return all, strings.Contains(all, "Stopping container helper")
	})
	compareEvents(t, ended)
}

// volatile lists what differs from run to run.
var volatile = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`(containerd|cri-o)://[0-9a-f]{64}`), "$1://ID"},
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "sha256:DIGEST"},
	{regexp.MustCompile(`kube-api-access-\w{5}`), "kube-api-access-XXXXX"},
	{regexp.MustCompile(`10\.244\.\d+\.\d+`), "POD-IP"},
	{regexp.MustCompile(`10\.77\.\d+\.\d+`), "HOST-IP"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
}

func stable(text string) string {
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.name)
	}
	return text
}
