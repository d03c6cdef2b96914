package objects

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var bundleRef = []Ref{{Kind: TrustBundles, Watch: true}}

func bundle(name, signer, tier, pem string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tier": tier}},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: pem},
	}
}

// bySigner selects the bundles of example.com/a with these labels; nil selects none.
func bySigner(labels *metav1.LabelSelector) *corev1.ClusterTrustBundleProjection {
	return &corev1.ClusterTrustBundleProjection{SignerName: new("example.com/a"), LabelSelector: labels}
}

func (b *bench) wantBundles(s *corev1.ClusterTrustBundleProjection, want ...string) {
	b.Helper()
	got, err := b.o.TrustBundles(b.Context(), s)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		b.Errorf("bundles of %v: got %q, %v, want %q", s, got, err, want)
	}
}

func TestTrustBundlesSelected(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(bundle("example.com:a:one", "example.com/a", "x", "1"))
		b.server.Put(bundle("example.com:a:two", "example.com/a", "y", "2"))
		b.server.Put(bundle("example.com:b:one", "example.com/b", "x", "3"))
		b.server.Put(bundle("plain", "", "x", "4"))
		b.o.Use("p1", bundleRef)
		b.wantBundles(bySigner(nil))
		b.wantBundles(bySigner(&metav1.LabelSelector{}), "1", "2")
		b.wantBundles(bySigner(&metav1.LabelSelector{MatchLabels: map[string]string{"tier": "y"}}), "2")
		b.wantBundles(bySigner(&metav1.LabelSelector{MatchLabels: map[string]string{"tier": "z"}}))
		b.wantBundles(&corev1.ClusterTrustBundleProjection{Name: new("plain")}, "4")
		_, err := b.o.TrustBundles(b.Context(), &corev1.ClusterTrustBundleProjection{Name: new("none")})
		if !apierrors.IsNotFound(err) || err.Error() != `clustertrustbundle.certificates.k8s.io "none" not found` {
			b.Errorf("a bundle that does not exist: got %v, want not found", err)
		}
		for want, s := range map[string]*corev1.ClusterTrustBundleProjection{
			"either name or signerName must be set": {},
			"labelSelector: ": bySigner(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "tier", Operator: "Perhaps"}}}),
			"above the limit": bySigner(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "tier", Operator: "In", Values: manyValues(maxSelector)}}}),
		} {
			if _, err := b.o.TrustBundles(b.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
				b.Errorf("got %v, want %s", err, want)
			}
		}
	})
}

// manyValues are label values of at least this length together.
func manyValues(length int) (all []string) {
	for n := 0; n < length; n += 60 {
		all = append(all, strings.Repeat("v", 50)+strings.Repeat("w", n%10)+string(rune('a'+n%26)))
	}
	return append(all, all...)
}

// TestTrustBundlesFollowed checks that one watch serves all pods, from the first to a while after the last, and each
// change notifies all of them.
func TestTrustBundlesFollowed(t *testing.T) {
	run(t, func(b *bench) {
		b.wantRequests()
		b.o.Use("p1", bundleRef)
		b.o.Use("p2", bundleRef)
		b.wantBundles(bySigner(&metav1.LabelSelector{}))
		b.wantRequests("watch clustertrustbundles /")
		b.wantChanges()
		b.server.Put(bundle("example.com:a:one", "example.com/a", "x", "1"))
		b.wantChanges("[p1 p2]")
		b.wantBundles(bySigner(&metav1.LabelSelector{}), "1")
		b.server.Put(bundle("example.com:a:one", "example.com/a", "x", "one"))
		b.wantChanges("[p1 p2]")
		b.wantBundles(bySigner(&metav1.LabelSelector{}), "one")
		b.o.Use("p1", nil)
		b.server.Delete("clustertrustbundles", "", "example.com:a:one")
		b.wantChanges("[p2]")
		b.wantBundles(bySigner(&metav1.LabelSelector{}))
		b.wantRequests()

		b.o.Use("p2", nil)
		synctest.Wait()
		if n := b.server.Watches(); n != 1 {
			b.Errorf("got %d watches just after the last pod, want 1", n)
		}
		time.Sleep(linger + time.Second)
		synctest.Wait()
		if n := b.server.Watches(); n != 0 {
			b.Errorf("got %d watches a while after the last pod, want 0", n)
		}
	})
}

// TestTrustBundlesWhileAway checks that what is known stays while the API server is away, and what comes back
// unchanged is no news.
func TestTrustBundlesWhileAway(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Intercept(down)
		b.o.Use("p1", bundleRef)
		if _, err := b.o.TrustBundles(b.Context(), bySigner(nil)); err == nil || apierrors.IsNotFound(err) {
			b.Errorf("with the API server away from the start: got %v, want an error other than not found", err)
		}
		b.server.Put(bundle("example.com:a:one", "example.com/a", "x", "1"))
		b.server.Intercept(nil)
		time.Sleep(time.Minute)
		b.wantChanges("[p1]")
		b.wantBundles(bySigner(&metav1.LabelSelector{}), "1")
		b.server.Intercept(down)
		b.server.CutWatches()
		time.Sleep(time.Minute)
		b.wantBundles(bySigner(&metav1.LabelSelector{}), "1")
		b.server.Intercept(nil)
		time.Sleep(time.Minute)
		b.wantChanges()
	})
}

// TestTrustBundlesNotServed checks that the API server forbids what it does not serve: the error says so, and
// satisfies a source that is optional.
func TestTrustBundlesNotServed(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if strings.HasSuffix(r.URL.Path, "/clustertrustbundles") {
				return apierrors.NewForbidden(certificatesv1.Resource("clustertrustbundles"), "", nil)
			}
			return nil
		})
		b.o.Use("p1", bundleRef)
		_, err := b.o.TrustBundles(b.Context(), bySigner(nil))
		if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "feature gate ClusterTrustBundle") {
			b.Errorf("got %v, want what the API server lacks", err)
		}
	})
}

func TestGatesClosed(t *testing.T) {
	run(t, func(b *bench) {
		b.o.cfg.TrustBundles, b.o.cfg.PodCertificates = false, false
		b.o.Use("uid", bundleRef)
		if _, err := b.o.TrustBundles(b.Context(), bySigner(nil)); err == nil ||
			!strings.Contains(err.Error(), "ClusterTrustBundleProjection") {
			b.Errorf("trust bundles: got %v, want the gate", err)
		}
		_, _, err := b.o.PodCertificate(b.Context(), certPod("ECDSAP256"), "v", 0, nil, time.Time{})
		if err == nil || !strings.Contains(err.Error(), "PodCertificateRequest") {
			b.Errorf("pod certificate: got %v, want the gate", err)
		}
	})
}
