package podfs

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func certVolume(s corev1.PodCertificateProjection, more ...corev1.VolumeProjection) corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o644)),
		Sources: append([]corev1.VolumeProjection{{PodCertificate: &s}}, more...)}}
}

var bundlePath = corev1.PodCertificateProjection{
	SignerName:           "example.com/s",
	KeyType:              "ECDSAP256",
	CredentialBundlePath: "dir/cred.pem",
}

func newPair(t testing.TB) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: testNow, NotAfter: testNow.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{PrivateKey: key, Certificate: [][]byte{der, {1, 2, 3}}}
}

// always gives the same certificate.
func always(c *tls.Certificate,
	renew time.Time) func(*tls.Certificate, time.Time) (*tls.Certificate, time.Time, error) {
	return func(*tls.Certificate, time.Time) (*tls.Certificate, time.Time, error) { return c, renew, nil }
}

func texts(t *testing.T, c *tls.Certificate) (key, chain string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		string(encodeCertificates(c.Certificate))
}

func TestPodCertificateFiles(t *testing.T) {
	t.Parallel()
	c := newPair(t)
	key, chain := texts(t, c)
	split := corev1.PodCertificateProjection{KeyPath: "key.pem", CertificateChainPath: "chain.pem"}
	for name, tt := range map[string]struct {
		source corev1.PodCertificateProjection
		want   map[string]string
	}{
		"bundle": {bundlePath, map[string]string{"dir/cred.pem": key + chain}},
		"split":  {split, map[string]string{"key.pem": key, "chain.pem": chain}},
		"chain":  {corev1.PodCertificateProjection{CertificateChainPath: "c"}, map[string]string{"c": chain}},
	} {
		v, o := newVolumes(t), testObjects()
		o.certify = always(c, testNow.Add(time.Hour))
		m := mustMount(t, v, request(testPod(), name, certVolume(tt.source)), o)
		wantFiles(t, m.HostPath, tt.want)
		wantTidy(t, m.HostPath)
		if !isTmpfs(t, m.HostPath) || !m.RefreshAt.Equal(testNow.Add(time.Hour)) {
			t.Errorf("%s: got %+v, want a tmpfs to renew in an hour", name, m)
		}
		for path := range maps.Keys(tt.want) {
			if mode := statPath(t, filepath.Join(m.HostPath, "..data", path)).Mode & 0o777; mode != 0o644 {
				t.Errorf("%s: %s: got mode %o, want 644", name, path, mode)
			}
		}
	}
}

// TestPodCertificateIsItsOwnRecord checks that the certificate in a volume and its time of renewal are passed to the
// source of certificates, also after a restart.
func TestPodCertificateIsItsOwnRecord(t *testing.T) {
	t.Parallel()
	c := newPair(t)
	key, chain := texts(t, c)
	renew := testNow.Add(5 * time.Hour)
	split := corev1.PodCertificateProjection{KeyPath: "key.pem", CertificateChainPath: "chain.pem"}
	for name, source := range map[string]corev1.PodCertificateProjection{"bundle": bundlePath, "split": split} {
		v, o := newVolumes(t), testObjects()
		r := request(testPod(), name, certVolume(source))
		var seen *tls.Certificate
		var noted time.Time
		o.certify = func(shown *tls.Certificate, at time.Time) (*tls.Certificate, time.Time, error) {
			seen, noted = shown, at
			if shown == nil {
				return c, renew, nil
			}
			return shown, at, nil
		}
		m := mustMount(t, v, r, o)
		if seen != nil || !noted.IsZero() {
			t.Errorf("%s: empty volume: got %v, %v, want nothing", name, seen, noted)
		}
		again, err := New(Config{Log: discard, Root: filepath.Dir(v.podsDir)})
		if err != nil {
			t.Fatal(err)
		}
		before := shown(t, m)
		if m := mustMount(t, again, r, o); shown(t, m) != before || !m.RefreshAt.Equal(renew) {
			t.Errorf("%s: the same certificate: got %+v, want no change", name, m)
		}
		if seen == nil || !slices.EqualFunc(seen.Certificate, c.Certificate, slices.Equal) || !noted.Equal(renew) {
			t.Errorf("%s: the volume: got %v, %v, want what it was given", name, seen, noted)
		}
		// Without the note, as another agent leaves it, and with a key of something else.
		path := filepath.Join(m.HostPath, "..data", cmp.Or(source.CredentialBundlePath, source.CertificateChainPath))
		if err := os.WriteFile(path+".new", []byte(chainOrBoth(source, key, chain)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		mustMount(t, v, r, o)
		if seen == nil || !noted.IsZero() {
			t.Errorf("%s: without a note: got %v, %v, want the certificate and no time", name, seen, noted)
		}
		other, _ := texts(t, newPair(t))
		if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		if mustMount(t, v, r, o); seen != nil {
			t.Errorf("%s: half a pair: got it, want nothing", name)
		}
	}
}

func chainOrBoth(s corev1.PodCertificateProjection, key, chain string) string {
	if s.CredentialBundlePath != "" {
		return key + chain
	}
	return chain
}

// TestPodCertificatePending checks that without a certificate there is no volume, no token is asked for, and the
// error names the source.
func TestPodCertificatePending(t *testing.T) {
	t.Parallel()
	v, o := newVolumes(t), accessObjects(func() time.Time { return testNow })
	o.certify = func(*tls.Certificate, time.Time) (*tls.Certificate, time.Time, error) {
		return nil, time.Time{}, errors.New("credential bundle is not issued yet")
	}
	r := request(testPod(), "p", certVolume(bundlePath, apiAccess().Projected.Sources...))
	_, err := v.Mount(t.Context(), r, o)
	want := `MountVolume.SetUp failed for volume "p" : sources[0].podCertificate: credential bundle is not issued yet`
	if err == nil || err.Error() != want || o.tokens != 0 {
		t.Errorf("got %v, %d tokens", err, o.tokens)
	}
	// With it, and with a token, the earlier of the two is waited for; one that is overdue is looked at in a while.
	for renew, most := range map[time.Duration]time.Duration{
		-time.Hour:       certificateRetry,
		10 * time.Minute: 10 * time.Minute,
		time.Hour:        48 * time.Minute,
	} {
		o.certify = always(newPair(t), testNow.Add(renew))
		m := mustMount(t, v, r, o)
		if d := m.RefreshAt.Sub(testNow); d > most+10*time.Second || d < most-time.Minute/2 {
			t.Errorf("renewal in %s: refresh in %s, want %s", renew, d, most)
		}
	}
}

func trustVolume(s corev1.ClusterTrustBundleProjection) corev1.VolumeSource {
	return corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &s}}},
	}
}

func TestTrustBundle(t *testing.T) {
	t.Parallel()
	v, o := newVolumes(t), testObjects()
	one, two := string(encodeCertificates([][]byte{{1}})), string(encodeCertificates([][]byte{{2}}))
	three := string(encodeCertificates([][]byte{{3}}))
	key := "-----BEGIN PRIVATE KEY-----\nAQ==\n-----END PRIVATE KEY-----\n"
	o.bundles = []string{"comment\n" + one + key + two, two + three + one}
	pod := testPod()
	m := mustMount(t, v, request(pod, "p", trustVolume(corev1.ClusterTrustBundleProjection{Path: "ca.pem"})), o)
	raw, err := os.ReadFile(filepath.Join(m.HostPath, "ca.pem"))
	if err != nil || len(raw) != len(one+two+three) || !strings.Contains(string(raw), one) ||
		!strings.Contains(string(raw), two) || !strings.Contains(string(raw), three) {
		t.Errorf("got %q, %v", raw, err)
	}
	slices.Reverse(o.bundles)
	before := shown(t, m)
	if mustMount(t, v, request(pod, "p", trustVolume(corev1.ClusterTrustBundleProjection{Path: "ca.pem"})),
		o); shown(t, m) != before {
		t.Error("bundles in another order: got another file, want the same")
	}
	o.bundles = []string{one}
	mustMount(t, v, request(pod, "p", trustVolume(corev1.ClusterTrustBundleProjection{Path: "ca.pem"})), o)
	wantFiles(t, m.HostPath, map[string]string{"ca.pem": one})
}

// TestTrustBundleOrder checks that pods do not see the same order: none can come to depend on it.
func TestTrustBundleOrder(t *testing.T) {
	t.Parallel()
	orders := map[string]bool{}
	for _, seed := range []string{"a", "b", "c", "d", "e", "f"} {
		orders[string(encodeCertificates(shuffled([][]byte{{1}, {2}, {3}, {4}, {5}}, seed)))] = true
	}
	if len(orders) < 2 {
		t.Errorf("got %d orders for six seeds, want at least 2", len(orders))
	}
}

func TestTrustBundleMissing(t *testing.T) {
	t.Parallel()
	missing := apierrors.NewNotFound(corev1.Resource("clustertrustbundle"), "x")
	for name, tt := range map[string]struct {
		err            error
		optional, want string
	}{
		"named":  {missing, "ok", `clustertrustbundle "x" not found`},
		"none":   {nil, "ok", "combination of signerName and labelSelector matched zero ClusterTrustBundles"},
		"broken": {context.DeadlineExceeded, "fails", context.DeadlineExceeded.Error()},
	} {
		v, o := newVolumes(t), testObjects()
		o.bundleErr = tt.err
		_, err := v.Mount(t.Context(), request(testPod(), name, trustVolume(corev1.ClusterTrustBundleProjection{Path: "ca"})),
			o)
		if err == nil || !strings.HasSuffix(err.Error(), ": sources[0].clusterTrustBundle: "+tt.want) {
			t.Errorf("%s: got %v", name, err)
		}
		m, err := v.Mount(t.Context(),
			request(testPod(), name, trustVolume(corev1.ClusterTrustBundleProjection{Path: "ca", Optional: new(true)})), o)
		if (err == nil) != (tt.optional == "ok") {
			t.Errorf("%s, optional: got %v, want %v", name, err, tt.optional)
		}
		if err == nil {
			wantFiles(t, m.HostPath, map[string]string{"ca": ""})
		}
	}
}
