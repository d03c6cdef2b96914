package objects

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"},
		Spec: corev1.PodSpec{ServiceAccountName: "sa",
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "missing"}, {Name: ""}, {Name: "s"}}},
	}
}

func TestToken(t *testing.T) {
	run(t, func(b *bench) {
		token, expires, err := b.o.Token(b.Context(), testPod(), "aud", 3600)
		if err != nil || token != "ns|sa|Pod|p|uid|aud" {
			b.Errorf("token %q, %v; want one bound to the pod", token, err)
		}
		if d := time.Until(expires).Round(time.Second); d != time.Hour {
			b.Errorf("the token expires: got in %s, want in 1h0m0s", d)
		}
		if token, _, _ = b.o.Token(b.Context(), testPod(), "", 600); token != "ns|sa|Pod|p|uid|" {
			b.Errorf("without an audience the token: got %q, want ns|sa|Pod|p|uid|", token)
		}
		b.wantRequests("create serviceaccounts ns/sa", "create serviceaccounts ns/sa")

		for _, lag := range []*apierrors.StatusError{apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "sa", nil),
			apierrors.NewNotFound(corev1.Resource("pods"), "p"), apierrors.NewNotFound(corev1.Resource("pod"), "p")} {
			start := time.Now()
			b.server.Intercept(func(*http.Request) *apierrors.StatusError {
				if time.Since(start) < time.Second {
					return lag
				}
				return nil
			})
			if token, _, err = b.o.Token(b.Context(), testPod(), "", 600); err != nil {
				b.Errorf("a token while the API server lags: %v", err)
			}
		}
		start := time.Now()
		b.server.Intercept(func(*http.Request) *apierrors.StatusError {
			return apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "sa")
		})
		if _, _, err = b.o.Token(b.Context(), testPod(), "", 600); !apierrors.IsNotFound(err) || time.Since(start) > 0 {
			b.Errorf("a service account that does not exist: got %v after %s, want not found at once",
				err, time.Since(start))
		}
		b.server.Intercept(down)
		if token, _, err = b.o.Token(b.Context(), testPod(), "", 600); err == nil || token != "" ||
			!strings.Contains(err.Error(), "ns/sa") {
			b.Errorf("got token %q, %v, want an error with the service account's name", token, err)
		}
	})
}

// TestTokenOfRecreatedAccount checks that a token of one service account is not that of another with its name.
func TestTokenOfRecreatedAccount(t *testing.T) {
	run(t, func(b *bench) {
		for _, uid := range []types.UID{"old", "new"} {
			b.server.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: uid}})
			token, _, err := b.o.AccountToken(b.Context(), testPod(), "old", "aud", 3600)
			if given := err == nil; given != (uid == "old") || !given && !apierrors.IsConflict(err) {
				b.Errorf("the token of the account old, now %s: got %q, %v, want it or a conflict", uid, token, err)
			}
			if _, _, err := b.o.Token(b.Context(), testPod(), "", 3600); err != nil {
				b.Errorf("a token of the account by its name, which is %s now: %v", uid, err)
			}
		}
	})
}

// TestTokenOfSlowServer checks that a token arrives if the API server answers after a minute, and that the pods after
// that one do not wait for it.
func TestTokenOfSlowServer(t *testing.T) {
	run(t, func(b *bench) {
		var requests atomic.Int64
		b.server.Intercept(func(*http.Request) *apierrors.StatusError {
			if requests.Add(1) <= tokensAtOnce {
				time.Sleep(time.Minute)
			}
			return nil
		})
		var slow sync.WaitGroup
		for range tokensAtOnce {
			slow.Go(func() {
				if _, _, err := b.o.Token(b.Context(), testPod(), "", 3600); err != nil {
					b.Error(err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		_, _, err := b.o.Token(b.Context(), testPod(), "", 3600)
		if took := time.Since(start); err != nil || took > 31*time.Second {
			b.Errorf("another token: got %v after %s, want it after 30 s", err, took)
		}
		slow.Wait()
	})
}

func TestPullSecrets(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
			Data:       map[string][]byte{"k": []byte("v")},
		})
		got, missing, err := b.o.PullSecrets(b.Context(), testPod())
		if !slices.Equal(missing, []string{"missing"}) {
			b.Errorf("got the names %q, want that of the missing one", missing)
		}
		if len(got) != 1 || got[0].Name != "s" || string(got[0].Data["k"]) != "v" {
			b.Errorf("got %v, want the one that is there", got)
		}
		if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `secret "missing" not found`) {
			b.Errorf("got %v, want that the secret is not found", err)
		}
	})
}

// TestPullSecretsWhileServerIsAway checks that a container of a running pod can start again: its image may need the
// credentials with which it was pulled.
func TestPullSecretsWhileServerIsAway(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
			Data:       map[string][]byte{"k": []byte("v")},
		})
		pod := testPod()
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
		b.o.UsePod(pod, false)
		b.o.Prime(pod) // as after a restart of the agent
		synctest.Wait()
		b.server.Intercept(down)
		got, _, err := b.o.PullSecrets(b.Context(), pod)
		if err != nil || len(got) != 1 || string(got[0].Data["k"]) != "v" {
			b.Errorf("got %v, %v, want the secret that was read last", got, err)
		}
		b.server.Intercept(nil)
		b.o.Drop(pod.UID)
	})
}

// TestForbiddenPullSecret checks that a pod whose image could not be pulled learns that a pull secret can now be read
// which the API server did not show before.
func TestForbiddenPullSecret(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}})
		pod := testPod()
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
		for _, err := range []*apierrors.StatusError{
			apierrors.NewForbidden(corev1.Resource("secrets"), "s", nil), down(nil),
		} {
			b.server.Intercept(func(*http.Request) *apierrors.StatusError { return err })
			b.o.UsePod(pod, false)
			if got, _, err := b.o.PullSecrets(b.Context(), pod); err == nil {
				b.Errorf("got %v, want the error of the API server", got)
			}
			b.o.UsePod(pod, true) // the pull has failed
			time.Sleep(10 * time.Minute)
			b.wantChanges()
			b.server.Intercept(nil)
			time.Sleep(30 * time.Second)
			b.wantChanges("[uid]")
			b.o.UsePod(pod, false)
			b.o.Drop(pod.UID)
			time.Sleep(linger + time.Second)
			b.wantChanges()
			if n := b.server.Watches(); n != 0 {
				b.Errorf("got %d watches after the last pod, want none", n)
			}
		}
	})
}

// TestServiceAccountWhileServerIsAway checks that a container of a running pod can start again if its image was pulled
// with a token of its service account. It is forgotten with the pod, and when it does not exist any more.
func TestServiceAccountWhileServerIsAway(t *testing.T) {
	run(t, func(b *bench) {
		b.o.cfg.ServiceAccounts = true
		b.server.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-uid",
			Annotations: map[string]string{"r/role": "puller"}}})
		pod := testPod()
		use := func() {
			b.o.UsePod(pod, false)
			b.o.Prime(pod) // as after a restart of the agent
			synctest.Wait()
			b.server.Intercept(down)
		}
		use()
		got, err := b.o.ServiceAccount(b.Context(), pod)
		if err != nil || got.UID != "sa-uid" || got.Namespace != "ns" || got.Annotations["r/role"] != "puller" {
			b.Errorf("got %v, %v, want what was read last", got, err)
		}
		b.o.Drop(pod.UID)
		if got, err := b.o.ServiceAccount(b.Context(), pod); err == nil {
			b.Errorf("after the pod: got %v, want an error", got)
		}
		b.server.Intercept(nil)
		_, err = b.o.ServiceAccount(b.Context(), pod)
		if _, kept := b.o.accounts.Load(pod.UID); kept || err != nil {
			b.Errorf("read after the pod: got %v, kept %t, want neither", err, kept)
		}
		use()
		b.server.Intercept(nil)
		b.server.Delete("serviceaccounts", "ns", "sa")
		for _, intercept := range []func(*http.Request) *apierrors.StatusError{nil, down} {
			b.server.Intercept(intercept)
			if got, err := b.o.ServiceAccount(b.Context(), pod); err == nil {
				b.Errorf("after it was deleted: got %v, want an error", got)
			}
		}
		b.server.Intercept(nil)
		b.o.Drop(pod.UID)
	})
}

func TestRuntimeHandler(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "gvisor"}, Handler: "runsc"})
		want := func(name, handler string) {
			b.Helper()
			if got, err := b.o.RuntimeHandler(b.Context(), name); err != nil || got != handler {
				b.Errorf("the handler of %q: got %q, %v, want %q", name, got, err, handler)
			}
			if got := b.o.KnownHandler(name); got != handler {
				b.Errorf("the known handler of %q: got %q, want %q", name, got, handler)
			}
		}
		want("", "")
		want("gvisor", "runsc")
		b.server.Delete("runtimeclasses", "", "gvisor")
		b.server.Put(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "gvisor"}, Handler: "runsc-kvm"})
		want("gvisor", "runsc-kvm") // it was made again
		b.wantRequests("get runtimeclasses /gvisor", "get runtimeclasses /gvisor")
		time.Sleep(time.Hour)
		b.server.Intercept(down)
		want("gvisor", "runsc-kvm")
		b.server.Intercept(nil)
		b.server.Delete("runtimeclasses", "", "gvisor")
		_, err := b.o.RuntimeHandler(b.Context(), "gvisor")
		if !apierrors.IsNotFound(err) || err.Error() != `runtimeclass.node.k8s.io "gvisor" not found` {
			b.Errorf("error: got %v, want the kubelet's", err)
		}
		b.server.Intercept(down)
		if _, err = b.o.RuntimeHandler(b.Context(), "gvisor"); err == nil {
			b.Error("a deleted class is remembered")
		}
	})
}

func service(namespace, name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"a": "b"}},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func (b *bench) wantServices(namespace, want string) {
	b.Helper()
	all, err := b.o.Services(b.Context(), namespace)
	if err != nil {
		b.Errorf("services of %s: %v", namespace, err)
	}
	found := map[string]bool{}
	for _, s := range all {
		found[s.Namespace+"/"+s.Name] = true
		if s.Labels != nil || len(s.Spec.Ports) != 1 {
			b.Errorf("got service %+v, want one port and no labels", s)
		}
	}
	for w := range strings.FieldsSeq(want) {
		if !found[w] {
			b.Errorf("services of %s: got %v, want %s", namespace, found, want)
		}
	}
	if len(all) != len(strings.Fields(want)) {
		b.Errorf("services of %s: got %v, want %s", namespace, found, want)
	}
}

func TestServices(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(service("ns", "a", "10.0.0.2"))
		b.server.Put(service("ns", "headless", "None"))
		b.server.Put(service("other", "c", "10.0.0.3"))
		b.wantServices("ns", "ns/a") // no default/kubernetes yet
		b.server.Put(service("default", "kubernetes", "None"))
		b.wantServices("ns", "ns/a")
		b.server.Put(service("default", "kubernetes", "10.0.0.1"))
		b.wantServices("ns", "ns/a default/kubernetes")
		b.wantServices("default", "default/kubernetes")
		b.server.Requests()
		b.server.Put(service("ns", "b", "10.0.0.4"))
		b.wantServices("ns", "ns/a ns/b default/kubernetes")
		b.wantRequests("list services ns/") // default/kubernetes is known

		b.server.Intercept(down)
		if _, err := b.o.Services(b.Context(), "ns"); !apierrors.IsServiceUnavailable(err) {
			b.Errorf("services of a namespace without pods: got error %v, want the API server's", err)
		}
		b.server.Intercept(nil)
		b.o.Use("p", []Ref{{Kind: Services, Namespace: "ns"}})
		b.wantServices("ns", "ns/a ns/b default/kubernetes")
		b.server.Intercept(down)
		time.Sleep(time.Hour)
		b.wantServices("ns", "ns/a ns/b default/kubernetes")
		b.o.Use("p", nil)
		if _, ok := b.o.services.Load("ns"); ok {
			b.Error("the services of a namespace without pods are kept")
		}
	})
}

// TestServicesOfPodWithoutObjects checks that a pod that uses no object keeps the services of its namespace, as
// others do: its containers are restarted also while the API server is away.
func TestServicesOfPodWithoutObjects(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(service("ns", "a", "10.0.0.2"))
		b.server.Put(service("default", "kubernetes", "10.0.0.1"))
		b.o.Use("p", []Ref{{Kind: Services, Namespace: "ns"}})
		b.wantServices("ns", "ns/a default/kubernetes")
		b.server.Intercept(down)
		time.Sleep(time.Hour)
		b.wantServices("ns", "ns/a default/kubernetes")
		b.o.Use("p", nil)
		if _, err := b.o.Services(b.Context(), "ns"); !apierrors.IsServiceUnavailable(err) {
			b.Errorf("services of a namespace without pods: got error %v, want the API server's", err)
		}
	})
}

// TestServicesOfStaticPod checks that a static pod gets the services that were read last.
func TestServicesOfStaticPod(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(service("ns", "a", "10.0.0.2"))
		l := NewLocal(b.o, nil)
		l.Use("static", []Ref{{Kind: Services, Namespace: "ns"}})
		l.Prime(running("static", ""))
		synctest.Wait()
		for name, answer := range map[string]func(*http.Request) *apierrors.StatusError{"down": down, "silent": b.silent} {
			b.server.Intercept(answer)
			if got, err := l.Services(b.Context(), "ns"); len(got) != 1 || err != nil {
				b.Errorf("%s: got services %v, %v, want ns/a", name, got, err)
			}
		}
		b.server.Intercept(nil)
	})
}

// learn lets the objects read a ConfigMap, services and a runtime class.
func (b *bench) learn() {
	b.Helper()
	b.server.Put(configMap("env", "1"))
	b.server.Put(service("ns", "a", "10.0.0.2"))
	b.server.Put(service("default", "kubernetes", "10.0.0.1"))
	b.server.Put(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata-qemu"})
	b.o.Use("p", []Ref{ref("env", false), {Kind: Services, Namespace: "ns"}})
	b.o.Prime(running("p", ""))
	synctest.Wait()
	if _, err := b.o.RuntimeHandler(b.Context(), "kata"); err != nil {
		b.Fatal(err)
	}
}

// TestKnownWhileServerIsSilent checks that what is known is used soon where packets to the API server are dropped.
func TestKnownWhileServerIsSilent(t *testing.T) {
	run(t, func(b *bench) {
		b.learn()
		time.Sleep(2 * kubernetesFresh)
		b.server.Intercept(b.silent)
		began := time.Now()
		if got, err := b.o.RuntimeHandler(b.Context(), "kata"); got != "kata-qemu" || time.Since(began) > recallAfter {
			b.Errorf("got handler %q, %v after %v, want kata-qemu within %v", got, err, time.Since(began), recallAfter)
		}
		for range 3 {
			began := time.Now()
			b.wantValue("env", "1")
			if got := time.Since(began); got > recallAfter {
				b.Errorf("the ConfigMap took %v, want at most %v", got, recallAfter)
			}
			began = time.Now()
			b.wantServices("ns", "ns/a default/kubernetes")
			if got := time.Since(began); got > recallAfter {
				b.Errorf("the services took %v, want at most %v", got, recallAfter)
			}
		}
		b.server.Intercept(nil)
	})
}

// TestKnownWhileCredentialsAreRefused checks that containers can start again with what is known while the API server
// does not accept the node's credentials, as after its certificate has expired.
func TestKnownWhileCredentialsAreRefused(t *testing.T) {
	run(t, func(b *bench) {
		b.learn()
		time.Sleep(time.Hour)
		b.server.Intercept(func(*http.Request) *apierrors.StatusError { return apierrors.NewUnauthorized("expired") })
		b.wantValue("env", "1")
		b.wantServices("ns", "ns/a default/kubernetes")
		if got, err := b.o.RuntimeHandler(b.Context(), "kata"); got != "kata-qemu" {
			b.Errorf("handler of the class kata: got %q, %v, want kata-qemu", got, err)
		}
		b.server.Intercept(nil)
	})
}

// TestNotFoundByAnother checks that a 404 which says nothing about the object, such as that of a load balancer while
// the API server behind it restarts, takes nothing from pods, and makes no optional object count as missing.
func TestNotFoundByAnother(t *testing.T) {
	noBackend := apierrors.NewGenericServerResponse(http.StatusNotFound, "", corev1.Resource("any"), "", "no backend", 0,
		true)
	run(t, func(b *bench) {
		b.learn()
		b.server.Put(configMap("shown", "1"))
		b.server.Put(bundle("example.com:a:one", "example.com/a", "x", "1"))
		b.o.Use("q", append([]Ref{ref("shown", true)}, bundleRef...))
		b.wantValue("shown", "1")
		b.wantBundles(bySigner(&metav1.LabelSelector{}), "1")
		time.Sleep(time.Hour)
		b.wantChanges()
		b.server.Intercept(func(*http.Request) *apierrors.StatusError { return noBackend })
		b.server.CutWatches()
		time.Sleep(time.Minute)
		b.wantChanges()
		b.wantValue("shown", "1")
		b.wantBundles(bySigner(&metav1.LabelSelector{}), "1")
		b.wantValue("env", "1")
		b.wantServices("ns", "ns/a default/kubernetes")
		if got, err := b.o.RuntimeHandler(b.Context(), "kata"); got != "kata-qemu" {
			b.Errorf("handler of the class kata: got %q, %v, want kata-qemu", got, err)
		}
		b.o.Use("r", []Ref{ref("new", true), ref("unread", false)})
		for _, name := range []string{"new", "unread"} {
			if _, err := b.o.ConfigMap(b.Context(), "ns", name); err == nil || apierrors.IsNotFound(err) {
				b.Errorf("%s: got %v, want an error other than not found", name, err)
			}
		}
		b.server.Intercept(nil)
	})
}

// TestServicesShareReads checks that calls share reads, but none gets the result of a read that began before it.
func TestServicesShareReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s services
		var began, reads atomic.Int32
		request := func() ([]*corev1.Service, error) {
			reads.Add(1)
			seen := began.Load() // what was there when the read began
			time.Sleep(time.Second)
			return make([]*corev1.Service, seen), nil
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 200 * time.Millisecond)
				mine := began.Add(1)
				if got, err := s.read(t.Context(), t.Context(), "ns", 0, request); err != nil || len(got) < int(mine) {
					t.Errorf("call %d got a read that began after call %d (%v)", mine, len(got), err)
				}
			})
		}
		wg.Wait()
		if n := reads.Load(); n > 6 {
			t.Errorf("20 calls in four seconds: got %d reads of a second each, want at most 6", n)
		}
	})
}

// TestLocalServices checks that a static pod has the services of the API server, but does not need it.
func TestLocalServices(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(service("ns", "a", "10.0.0.2"))
		l := NewLocal(b.o, nil)
		if all, err := l.Services(b.Context(), "ns"); len(all) != 1 || err != nil {
			b.Errorf("services: got %v, %v, want one", all, err)
		}
		b.server.Intercept(down)
		if all, err := l.Services(b.Context(), "ns"); all != nil || err != nil {
			b.Errorf("services without an API server: got %v, %v, want none", all, err)
		}
		b.server.Intercept(b.silent)
		began := time.Now()
		if all, err := l.Services(b.Context(), "ns"); all != nil || err != nil || time.Since(began) > localTimeout {
			b.Errorf("with an API server that keeps silent the services are %v, %v after %v", all, err, time.Since(began))
		}
		b.server.Intercept(nil)
	})
}

func TestLocal(t *testing.T) {
	var notified []types.UID
	l := NewLocal(nil, func(pods []types.UID) { notified = append(notified, pods...) })
	a, s := configMap("a", "1"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
	name := func(n string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: n} }
	configMaps := map[types.NamespacedName]*corev1.ConfigMap{name("a"): a}
	secrets := map[types.NamespacedName]*corev1.Secret{name("s"): s}
	l.Use("p", []Ref{ref("a", true)})
	l.Use("q", []Ref{{Kind: Secret, Namespace: "ns", Name: "s"}})
	l.Use("gone", []Ref{ref("a", true)})
	l.Use("gone", nil)
	l.Set(configMaps, secrets)
	if len(notified) != 2 {
		t.Errorf("notified %v, want p and q", notified)
	}
	notified = nil
	l.Set(configMaps, secrets)
	if notified != nil {
		t.Errorf("got %v notified of nothing, want none", notified)
	}
	l.Set(map[types.NamespacedName]*corev1.ConfigMap{name("a"): configMap("a", "2")}, secrets)
	if len(notified) != 1 || notified[0] != "p" {
		t.Errorf("notified %v, want p", notified)
	}
	if c, err := l.ConfigMap(t.Context(), "ns", "a"); err != nil || c.Data["k"] != "2" {
		t.Errorf("got %v, %v", c, err)
	}
	_, err := l.Secret(t.Context(), "ns", "nope")
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "add it to the manifest directory") {
		t.Errorf("missing object: got %v, want the advice to add it", err)
	}
	if found, _, err := l.PullSecrets(t.Context(), testPod()); len(found) != 1 || err == nil {
		t.Errorf("pull secrets: got %v, %v, want one, and an error about the other", found, err)
	}
	if _, _, err := l.Token(t.Context(), testPod(), "", 600); err == nil {
		t.Error("token: got one, want an error: a static pod has no service account")
	}
	if _, _, err := l.AccountToken(t.Context(), testPod(), "uid", "", 600); !errors.Is(err, errNoAPI) {
		t.Errorf("token of an account: got %v, want errNoAPI", err)
	}
	if all, err := l.Services(t.Context(), "ns"); all != nil || err != nil {
		t.Errorf("services: got %v, %v, want none", all, err)
	}
	if _, err := l.RuntimeHandler(t.Context(), "gvisor"); !errors.Is(err, errNoAPI) {
		t.Errorf("runtime handler: got %v, want errNoAPI", err)
	}
	if h, err := l.RuntimeHandler(t.Context(), ""); h != "" || err != nil {
		t.Errorf("the default handler: got %q, %v, want none", h, err)
	}
}
