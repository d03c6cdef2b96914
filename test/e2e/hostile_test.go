//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// outsideWord is part of the path that no container may ever see. watchMounts finds mounts of it by this word.
const outsideWord = "nodelet-e2e-outside"

// victims is the number of containers that mount three parts of a volume, report what they read there, and exit to be
// restarted.
const victims = 5

// swapYAML is the pod whose volume is attacked. Each victim mounts a directory, a directory below it, and a file in it.
func swapYAML() string {
	yaml := fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: swapped}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: %s
  volumes: [{name: shared, emptyDir: {}}, {name: report, emptyDir: {}}]
  initContainers:
  - name: first
    image: %[2]s
    command: [sh, -c, "mkdir -p /shared/x/below && echo inside >/shared/x/file && echo inside >/shared/x/below/file"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  containers:
`, node().Name, testbed.BusyboxImage)
	for i := range victims {
		yaml += fmt.Sprintf(`  - name: victim-%d
    image: %s
    command: [sh, -c, "cat /a/file /b/file /c >>/report/%[1]d; exit 1"]
    volumeMounts:
    - {name: shared, mountPath: /a, subPath: x}
    - {name: shared, mountPath: /b, subPath: x/below}
    - {name: shared, mountPath: /c, subPath: x/file}
    - {name: report, mountPath: /report}
`, i, testbed.BusyboxImage)
	}
	return yaml
}

// TestLongHostile runs pods that are malicious or invalid. None sees anything outside its volumes, no hostPath of the
// wrong type is mounted, events show the reasons, and other pods are not disturbed.
func TestLongHostile(t *testing.T) {
	clean(t)
	configure(t, "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n") // so that containers restart often
	sameAgent(t)
	bystander(t)
	t.Run("links swapped under subPaths", swapLinks)
	t.Run("dots in paths", dotsInPaths)
	t.Run("hostPath of another type", wrongTypes)
	t.Run("a hundred thousand files", manyFiles)
}

func swapLinks(t *testing.T) {
	outside := filepath.Join(t.TempDir(), outsideWord)
	for _, dir := range []string{outside, filepath.Join(outside, "below")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("outside\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, swapYAML())
	pod := waitPod(t, "swapped", "has restarted a container", func(p *corev1.Pod) bool {
		return containerStatus(p, "victim-0").RestartCount > 0
	})
	volumes := filepath.Join(node().RootDir, "pods", string(pod.UID), "volumes/kubernetes.io~empty-dir")
	ctx, cancel := context.WithCancel(t.Context())
	var attack sync.WaitGroup
	var swaps int
	attack.Go(func() { swaps = swap(t, ctx, filepath.Join(volumes, "shared"), outside) })
	attack.Go(func() { watchMounts(t, ctx) })
	begun := restarts(getPod(t, "swapped"))
	waitPod(t, "swapped", "has restarted its containers 40 times under attack", func(p *corev1.Pod) bool {
		return restarts(p) >= begun+40
	})
	cancel()
	attack.Wait()
	inside := 0
	for i := range victims {
		text, err := os.ReadFile(filepath.Join(volumes, "report", fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		inside += strings.Count(string(text), "inside\n")
		if strings.Contains(string(text), "outside") {
			t.Errorf("victim-%d: got a file outside its volume, want only files inside", i)
		}
	}
	refused := 0
	for _, e := range events(pod.UID) {
		if strings.Contains(e, "subPath for volumeMount") {
			refused++
		}
	}
	t.Logf("%d swaps, %d restarts, %d reads inside the volume, %d different refusals",
		swaps, restarts(getPod(t, "swapped"))-begun, inside, refused)
	if swaps < 1000 || inside == 0 || refused == 0 {
		t.Errorf(
			"attack: got %d swaps, %d reads inside the volume, %d refusals; want at least 1000, 1, 1, or it has tested nothing",
			swaps,
			inside,
			refused,
		)
	}
}

func restarts(p *corev1.Pod) (sum int) {
	for i := range p.Status.ContainerStatuses {
		sum += int(p.Status.ContainerStatuses[i].RestartCount)
	}
	return sum
}

// swap exchanges the directory x with links to the outside, as fast as a program in a container could, until ctx
// ends. In the end the directory is back in place.
func swap(t *testing.T, ctx context.Context, volume, outside string) (swaps int) {
	dir, err := os.Open(volume)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer dir.Close()
	up := strings.Repeat("../", strings.Count(volume, "/")) // from the volume to the root
	links := []string{outside, up + outside[1:], "/proc/self/root" + outside}
	for i, target := range links {
		if err := os.Symlink(target, filepath.Join(volume, fmt.Sprint("link-", i))); err != nil {
			t.Error(err)
			return 0
		}
	}
	fd := int(dir.Fd())
	for ; ctx.Err() == nil; swaps++ {
		link := fmt.Sprint("link-", swaps%len(links))
		for range 2 { // exchange and restore
			if err := unix.Renameat2(fd, "x", fd, link, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return swaps
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	return swaps
}

// watchMounts reads the mount table until ctx ends, and fails the test if the outside is mounted.
func watchMounts(t *testing.T, ctx context.Context) {
	for ctx.Err() == nil {
		table, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Error(err)
			return
		}
		for line := range strings.Lines(string(table)) {
			if strings.Contains(line, outsideWord) {
				t.Errorf("mount table: got a mount from outside the volume, want none: %s", line)
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// dotsInPaths checks paths of items that lead out of a volume. The API server rejects them in API pods, and the agent
// rejects them in manifests.
func dotsInPaths(t *testing.T) {
	pod := func(path string) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: dots}
spec:
  containers: [{name: app, image: %s, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, downwardAPI: {items: [{path: %q, fieldRef: {fieldPath: metadata.name}}]}}]
`, testbed.PauseImage, path)
	}
	for i, path := range []string{"../escape", "a/../../escape", "..data/escape", "/escape"} {
		mark := markLog(t)
		file := fmt.Sprintf("dots-%d.yaml", i)
		manifest(t, node().ManifestDir, file, pod(path))
		mark.waitLine(t, file, "spec.volumes[0].downwardAPI.items[0].path")
		if _, err := tb.Kubectl(t.Context(), "get", "pod", mirrorName("dots")); err == nil {
			t.Errorf("manifest with the path %q: got a mirror pod, want none", path)
		}
		if err := os.Remove(filepath.Join(node().ManifestDir, file)); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{
		"configMap: {name: m, items: [{key: k, path: ../escape}]}",
		"secret: {secretName: s, items: [{key: k, path: ../escape}]}",
	} {
		file := filepath.Join(t.TempDir(), "pod.yaml")
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: dots}\n"+
			"spec: {containers: [{name: app, image: x}], volumes: [{name: v, %s}]}\n", source)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := tb.Kubectl(t.Context(), "apply", "-f", file); err == nil || !strings.Contains(err.Error(), "..") {
			t.Errorf("%s: got %q, %v; want an error of the API server about ..", source, out, err)
		}
	}
}

// wrongTypes checks that a hostPath whose file has another type than the spec says is never mounted, and that an
// event shows the type that was expected.
func wrongTypes(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "socket"), filepath.Join(dir, "file")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ path, kind, refusal string }{
		{socket, "Socket", ""}, {file, "File", ""},
		{socket, "File", socket + " is not a file"}, {socket, "Directory", socket + " is not a directory"},
		{file, "Socket", file + " is not a socket file"}, {dir, "Socket", dir + " is not a socket file"},
		{socket, "BlockDevice", socket + " is not a block device"},
	} {
		name := fmt.Sprintf("typed-%d", i)
		apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: %s, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, hostPath: {path: %s, type: %s}}]
`, name, testbed.PauseImage, c.path, c.kind))
		if c.refusal == "" {
			waitReady(t, name)
			continue
		}
		waitEvent(t, name, "FailedMount", "hostPath type check failed: "+c.refusal)
		if p := getPod(t, name); containerStatus(p, "app").State.Running != nil {
			t.Errorf("pod with %s as %s: got it running, want it waiting: %s", c.path, c.kind, describe(p))
		}
	}
}

// manyFiles runs a pod whose fsGroup must be applied to a volume with very many files. Another pod starts in the
// meantime.
func manyFiles(t *testing.T) {
	const dirs, each, group = 100, 1000, 4321
	volume := t.TempDir()
	for d := range dirs {
		dir := filepath.Join(volume, fmt.Sprint(d))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range each {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), nil, 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: many}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: many}
  local: {path: %s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In,
    values: [%s]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: many}
spec: {accessModes: [ReadWriteOnce], storageClassName: manual, volumeName: many, resources: {requests: {storage: 1Gi}}}
`, volume, node().Name))
	waitBound(t, "many")
	begun := time.Now()
	apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: many}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: %d}
  containers: [{name: app, image: %s, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: many}}]
---
apiVersion: v1
kind: Pod
metadata: {name: neighbour}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: %[2]s}]
`, group, testbed.PauseImage))
	waitReady(t, "neighbour")
	neighbour := time.Since(begun)
	waitReady(t, "many")
	t.Logf("the other pod was Ready after %s, the pod with %d files after %s", neighbour, dirs*each, time.Since(begun))
	right := 0
	err := filepath.WalkDir(volume, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Sys().(*syscall.Stat_t).Gid == group && info.Mode().Perm()&0o060 == 0o060 {
			right++
		}
		return err
	})
	if err != nil || right != dirs*each {
		t.Errorf("files that belong to the group: got %d, %v; want %d", right, err, dirs*each)
	}
}

func waitBound(t *testing.T, claim string) {
	t.Helper()
	eventually(t, "the claim is bound", func() (string, bool) {
		phase := kubectl(t, "get", "pvc", claim, "-o", "jsonpath={.status.phase}")
		return phase, phase == string(corev1.ClaimBound)
	})
}
