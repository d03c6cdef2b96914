package pods

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods/manifest"
	"github.com/nodelet/nodelet/test/waittest"
)

// kubeconfigEnv names a kubeconfig of an administrator; with it the test below runs against a real API server.
const kubeconfigEnv = "NODELET_TEST_KUBECONFIG"

const testNode = "pods-test"

// realServer gives an administrator's client, one that acts as a node does, and the UID of that node.
func realServer(t *testing.T) (admin, node *client.Client, uid types.UID) {
	t.Helper()
	path := os.Getenv(kubeconfigEnv)
	if path == "" {
		t.Skipf("needs an API server: set %s", kubeconfigEnv)
	}
	cfg, err := client.LoadConfig(path)
	must(t, err)
	admin, err = client.New(cfg, 1000, 1000, "nodelet-test")
	must(t, err)
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:node:" + testNode,
		Groups:   []string{"system:nodes", "system:authenticated"},
	}
	node, err = client.New(cfg, 1000, 1000, "nodelet-test")
	must(t, err)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}}
	must(t, admin.Core.Post().Resource("nodes").Body(n).Do(t.Context()).Into(n))
	t.Cleanup(func() { _ = admin.Core.Delete().Resource("nodes").Name(testNode).Do(context.Background()).Error() })
	return admin, node, n.UID
}

// TestRealServer checks a static pod that uses a ConfigMap of the manifests, its mirror pod, and a pod of the API, on
// a real API server with the Node authorizer and NodeRestriction.
func TestRealServer(t *testing.T) {
	admin, node, uid := realServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	must(t, os.WriteFile(file, []byte(podWithConfigMap("static", "c")+"---\n"+configMapYAML("c")), 0o600))

	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s := newSources(Config{NodeName: testNode, API: true, Manifests: dir, Log: log})
	m := NewMirrors(MirrorConfig{API: node.Core, NodeName: testNode, Log: log,
		Ending:  func(types.NamespacedName, types.UID) bool { return false },
		NodeUID: func(context.Context) (types.UID, error) { return uid, nil }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, 3)
	for _, f := range []func(){func() { s.Run(ctx) }, func() { s.FollowAPI(ctx, node.Core) }, func() { m.Run(ctx) }} {
		go func() { f(); ended <- struct{}{} }()
	}
	defer func() {
		cancel()
		for range 3 {
			<-ended
		}
	}()
	awaitSet := func(what string, ok func(*Set) bool) *Set {
		t.Helper()
		limit := waittest.Context(t).Done()
		for {
			select {
			case set := <-s.updates:
				m.Keep(set)
				if ok(set) {
					return set
				}
			case <-limit:
				t.Fatalf("want %s, got it in no Set", what)
			}
		}
	}
	var static *corev1.Pod
	mirrored := func(set *Set) bool {
		for uid, p := range set.Pods {
			if podutil.IsStatic(p) {
				static = p
				_, ok := set.Mirror(uid)
				return ok && set.Synced
			}
		}
		return false
	}
	set := awaitSet("the mirror pod", mirrored)
	mirror, _ := set.Mirror(static.UID)
	if mirror.Name != "static-"+testNode || mirror.Annotations[annotationManifestObjects] != "ConfigMap/c" ||
		mirror.UID == static.UID {
		t.Errorf("mirror pod: got %s with %v, want the static pod's name and objects", mirror.Name, mirror.Annotations)
	}
	first := mirror.UID

	must(t, os.WriteFile(file, []byte(podYAML("static", "2")), 0o600))
	old := static.UID
	set = awaitSet("the mirror pod of the new manifest", func(set *Set) bool { return mirrored(set) && static.UID != old })
	if mirror, _ = set.Mirror(static.UID); mirror.UID == first || mirror.Spec.Containers[0].Image != "2" {
		t.Errorf("mirror pod: got UID %s and image %s, want another UID and image 2",
			mirror.UID, mirror.Spec.Containers[0].Image)
	}

	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pods-test-api"}, Spec: corev1.PodSpec{NodeName: testNode,
		AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	must(t, admin.Core.Post().Namespace("default").Resource("pods").Body(pod).Do(t.Context()).Into(pod))
	awaitSet("the API pod", func(set *Set) bool {
		return set.Pods[pod.UID] != nil &&
			SourceOf(set.Pods[pod.UID]) == SourceAPI
	})
	now := int64(0)
	must(t, admin.Core.Delete().Namespace("default").Resource("pods").Name(pod.Name).
		Body(&metav1.DeleteOptions{GracePeriodSeconds: &now}).Do(t.Context()).Error())
	awaitSet("the API pod's end", func(set *Set) bool { return set.Pods[pod.UID] == nil })

	must(t, os.Remove(file))
	awaitSet("the mirror pod's end", func(set *Set) bool { return len(set.Mirrors) == 0 && len(set.Pods) == 0 })
	err := admin.Core.Get().Namespace("default").Resource("pods").Name(mirror.Name).Do(t.Context()).Error()
	if !apierrors.IsNotFound(err) {
		t.Errorf("mirror pod of a removed manifest: got %v, want NotFound", err)
	}
}

// TestRealServerDefaults checks that what SetDefaults makes of a pod is what a real API server makes of it.
func TestRealServerDefaults(t *testing.T) {
	admin, _, _ := realServer(t)
	file, errs := manifest.Parse([]byte(strings.ReplaceAll(podYAML("defaults", "i"), "containers:",
		"automountServiceAccountToken: false, volumes: [{name: v}, {name: h, hostPath: {path: /x}}], containers:")),
		manifest.Origin{NodeName: testNode, Source: "file", Where: "x"})
	if errs != nil {
		t.Fatal(errs)
	}
	mine := file.Pods[0].Pod
	theirs := &corev1.Pod{}
	sent := mine.DeepCopy()
	sent.Annotations = nil
	must(t, admin.Core.Post().Namespace("default").Resource("pods").Param("dryRun",
		"All").Body(sent).Do(t.Context()).Into(theirs))
	// What admission adds is no default of the API.
	mine.Spec.ServiceAccountName = theirs.Spec.ServiceAccountName
	mine.Spec.DeprecatedServiceAccount = theirs.Spec.DeprecatedServiceAccount
	mine.Spec.Priority = theirs.Spec.Priority
	mine.Spec.PreemptionPolicy = theirs.Spec.PreemptionPolicy
	mine.Spec.Tolerations = theirs.Spec.Tolerations
	a, err := mine.Spec.Marshal()
	must(t, err)
	b, err := theirs.Spec.Marshal()
	must(t, err)
	if string(a) != string(b) {
		t.Errorf("got\n%v\nwant the API server's\n%v", mine.Spec, theirs.Spec)
	}
}
