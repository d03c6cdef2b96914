package objects

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/waittest"
)

// kubeconfigEnv names a kubeconfig of an administrator; with it the tests below run against a real API server.
const kubeconfigEnv = "NODELET_TEST_KUBECONFIG"

// realServer gives an administrator's client, one that acts as a node does, and a namespace that ends with the test.
func realServer(t testing.TB) (admin, node *client.Client, namespace string) {
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
		UserName: "system:node:objects-test",
		Groups:   []string{"system:nodes", "system:authenticated"},
	}
	node, err = client.New(cfg, 1000, 1000, "nodelet-test")
	must(t, err)
	namespace = fmt.Sprintf("objects-%d", time.Now().UnixNano())
	create(t, admin, "", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	t.Cleanup(func() {
		_ = admin.Core.Delete().Resource("namespaces").Name(namespace).Do(context.Background()).Error()
	})
	return admin, node, namespace
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, c *client.Client, namespace, resource string, o runtime.Object) {
	t.Helper()
	must(t, c.Core.Post().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Body(o).Do(t.Context()).Error())
}

// bound makes a pod on the node, so that the Node authorizer grants what it names.
func bound(t testing.TB, admin *client.Client, namespace, name string, volumes ...corev1.Volume) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName:   "objects-test",
			Volumes:    volumes,
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	got := &corev1.Pod{}
	must(t, admin.Core.Post().Namespace(namespace).Resource("pods").Body(pod).Do(t.Context()).Into(got))
	t.Cleanup(func() {
		now := int64(0)
		_ = admin.Core.Delete().Namespace(namespace).Resource("pods").Name(name).
			Body(&metav1.DeleteOptions{GracePeriodSeconds: &now}).Do(context.Background()).Error()
	})
	return got
}

func awaitServiceAccount(t testing.TB, c *client.Client, namespace string) {
	t.Helper()
	waittest.Until(t, "the namespace has its default service account", func() bool {
		return c.Core.Get().Namespace(namespace).Resource("serviceaccounts").Name("default").Do(t.Context()).Error() == nil
	})
}

func TestRealServer(t *testing.T) {
	admin, node, ns := realServer(t)
	awaitServiceAccount(t, admin, ns)
	changes := make(chan []types.UID, 10)
	o := New(Config{
		Core:     node.Core,
		Node:     node.Node,
		Log:      slog.New(slog.DiscardHandler),
		OnChange: func(p []types.UID) { changes <- p },
	})
	defer o.Close()
	changed := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-waittest.Context(t).Done():
			t.Fatalf("%s: got no notification, want one", what)
		}
	}
	a := configMap("a", "1")
	a.Namespace = ns
	create(t, admin, ns, "configmaps", a)
	// No sleep: the authorizer may well not know of the pod yet.
	pod := bound(t, admin, ns, "p", corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}},
		corev1.Volume{Name: "w", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}})
	start := time.Now()
	o.Use(pod.UID, []Ref{{ConfigMap, ns, "a", true}, {Secret, ns, "s", true}})
	got, err := o.ConfigMap(t.Context(), ns, "a")
	must(t, err)
	t.Logf("first read took %s", time.Since(start))
	if got.Data["k"] != "1" {
		t.Errorf("data: got %v, want k=1", got.Data)
	}
	if _, err := o.Secret(t.Context(), ns, "s"); !apierrors.IsNotFound(err) {
		t.Errorf("missing Secret: got %v, want NotFound", err)
	}
	create(t, admin, ns, "secrets", &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Data:       map[string][]byte{"k": []byte("v")},
	})
	changed("the Secret's creation")
	if s, err := o.Secret(t.Context(), ns, "s"); err != nil || string(s.Data["k"]) != "v" {
		t.Errorf("Secret: got %v, %v, want its data", s, err)
	}
	a.Data["k"] = "2"
	must(t, admin.Core.Put().Namespace(ns).Resource("configmaps").Name("a").Body(a).Do(t.Context()).Error())
	changed("the ConfigMap's change")
	if got, err = o.ConfigMap(t.Context(), ns, "a"); err != nil || got.Data["k"] != "2" {
		t.Errorf("got ConfigMap %v, %v, want k=2", got, err)
	}
	must(t, admin.Core.Delete().Namespace(ns).Resource("configmaps").Name("a").Do(t.Context()).Error())
	changed("the ConfigMap's deletion")
	if _, err := o.ConfigMap(t.Context(), ns, "strange"); !apierrors.IsForbidden(err) {
		t.Errorf("what no pod of the node names: got %v, want it forbidden", err)
	}
}

func TestRealServerToken(t *testing.T) {
	admin, node, ns := realServer(t)
	awaitServiceAccount(t, admin, ns)
	o := New(Config{Core: node.Core, Node: node.Node, Log: slog.New(slog.DiscardHandler)})
	defer o.Close()
	pod := bound(t, admin, ns, "p")
	token, expires, err := o.Token(t.Context(), pod, "", 3600)
	if err != nil || len(strings.Split(token, ".")) != 3 {
		t.Fatalf("token: got %v, want three parts and no error", err)
	}
	if d := time.Until(expires); d < 50*time.Minute || d > 70*time.Minute {
		t.Errorf("the token expires in %s, want about an hour", d)
	}
	unknown := pod.DeepCopy()
	unknown.UID = "another"
	if _, _, err := o.Token(t.Context(), pod, "other-audience", 3600); !apierrors.IsForbidden(err) {
		t.Errorf("token for an audience that the pod does not ask for: got %v, want Forbidden", err)
	}
	if _, _, err := o.Token(t.Context(), unknown, "", 3600); err == nil {
		t.Error("a pod that does not exist: got a token, want an error")
	}
	all, err := o.Services(t.Context(), ns)
	if err != nil || len(all) != 1 || all[0].Name != "kubernetes" {
		t.Errorf("services: got %v, %v, want one", all, err)
	}
	if _, err := o.RuntimeHandler(t.Context(), "nope"); !apierrors.IsNotFound(err) {
		t.Errorf("missing RuntimeClass: got %v, want NotFound", err)
	}
}
