package objects

import (
	"context"
	"fmt"
	"maps"
	"slices"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
)

// maxSelector bounds the label selector of a trust bundle source, as the kubelet does.
const maxSelector = 100 << 10

// trustBundle is what is kept of a ClusterTrustBundle.
type trustBundle struct {
	version, signer string
	labels          labels.Set
	pem             string
}

// TrustBundles returns what the ClusterTrustBundles hold that s names: one, or all of a signer that have its labels, which may
// be none. An error satisfies apierrors.IsNotFound if the one does not exist, or if the API server has no such objects at all.
// They are followed from the first pod that shows some until a while after the last; the call only waits for the first answer.
func (o *Objects) TrustBundles(ctx context.Context, s *corev1.ClusterTrustBundleProjection) ([]string, error) {
	if !o.cfg.TrustBundles {
		return nil, switchedOff("ClusterTrustBundle and ClusterTrustBundleProjection")
	}
	selector, err := bundleSelector(s)
	if err != nil {
		return nil, err
	}
	all, err := o.knownBundles(ctx)
	if err != nil {
		return nil, err
	}
	if s.Name != nil {
		b := all[*s.Name]
		if b == nil {
			return nil, apierrors.NewNotFound(certificatesv1beta1.Resource("clustertrustbundle"), *s.Name)
		}
		return []string{b.pem}, nil
	}
	var found []string
	for _, b := range all {
		if b.signer == *s.SignerName && selector.Matches(b.labels) {
			found = append(found, b.pem)
		}
	}
	return found, nil
}

// bundleSelector is nil for a source that names its bundle. No selector selects nothing, an empty one all.
func bundleSelector(s *corev1.ClusterTrustBundleProjection) (labels.Selector, error) {
	if s.Name != nil {
		return nil, nil
	}
	if s.SignerName == nil {
		return nil, fmt.Errorf("either name or signerName must be set")
	}
	selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("labelSelector: %w", err)
	}
	if n := len(selector.String()); n > maxSelector {
		return nil, fmt.Errorf("labelSelector: its length of %d is above the limit of %d", n, maxSelector)
	}
	return selector, nil
}

// knownBundles are all bundles there are. The map is not changed any more.
func (o *Objects) knownBundles(ctx context.Context) (map[string]*trustBundle, error) {
	o.mu.Lock()
	e := o.entries[key{kind: TrustBundles}]
	o.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("no pod in use shows ClusterTrustBundles")
	}
	if _, err := o.await(ctx, e); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return e.bundles, nil
}

func (o *Objects) trustBundles() watch.Target {
	return watch.Target{Client: o.cfg.CertificatesBeta, Resource: "clustertrustbundles"}
}

// bundleSink takes in what is followed for e.
type bundleSink struct {
	ctx context.Context
	o   *Objects
	e   *entry
}

func (s *bundleSink) Replace(objs []metav1.Object) {
	next := map[string]*trustBundle{}
	for _, obj := range objs {
		if b, ok := obj.(*certificatesv1beta1.ClusterTrustBundle); ok {
			next[b.Name] = slimBundle(b)
		}
	}
	s.store(func(map[string]*trustBundle) map[string]*trustBundle { return next })
}

func (s *bundleSink) Set(obj metav1.Object) {
	b, ok := obj.(*certificatesv1beta1.ClusterTrustBundle)
	if !ok {
		return
	}
	s.store(func(now map[string]*trustBundle) map[string]*trustBundle {
		next := maps.Clone(now)
		next[b.Name] = slimBundle(b)
		return next
	})
}

func (s *bundleSink) Delete(obj metav1.Object) {
	s.store(func(now map[string]*trustBundle) map[string]*trustBundle {
		next := maps.Clone(now)
		delete(next, obj.GetName())
		return next
	})
}

// Trouble tells pods that wait for bundles why there are none. Those that are known stay.
func (s *bundleSink) Trouble(err error) {
	if err == nil {
		return
	}
	if err = s.o.bundleTrouble(s.ctx, err); s.ctx.Err() != nil {
		return
	}
	s.o.complain(s.ctx, s.e.key, err)
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if s.e.bundles != nil {
		return
	}
	s.e.err = err
	if !s.e.answered() {
		close(s.e.known)
	}
}

// store takes the next state and tells the users of e if that is news.
func (s *bundleSink) store(change func(now map[string]*trustBundle) map[string]*trustBundle) {
	s.o.mu.Lock()
	if s.ctx.Err() != nil {
		s.o.mu.Unlock()
		return
	}
	before, news := s.e.bundles, s.e.answered()
	s.e.bundles, s.e.err = change(before), nil
	if !news {
		close(s.e.known)
	}
	news = news && (before == nil || !maps.EqualFunc(before, s.e.bundles, sameBundle))
	users := slices.Collect(maps.Keys(s.e.users))
	s.o.mu.Unlock()
	if news {
		s.o.tell(users)
	}
}

func sameBundle(a, b *trustBundle) bool { return a.version == b.version }

func slimBundle(b *certificatesv1beta1.ClusterTrustBundle) *trustBundle {
	return &trustBundle{version: b.ResourceVersion, signer: b.Spec.SignerName, labels: b.Labels, pem: b.Spec.TrustBundle}
}

// bundleTrouble says so where the API server has no bundles at all: nodes are then told that they are forbidden, or not found.
func (o *Objects) bundleTrouble(ctx context.Context, err error) error {
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return err
	}
	served, unknown := o.serves(ctx, "clustertrustbundles")
	if served || unknown != nil {
		return err
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound,
		Message: "the API server does not serve clustertrustbundles of " + certificatesv1beta1.SchemeGroupVersion.String() +
			": turn its feature gate ClusterTrustBundle on and enable the API with --runtime-config"}}
}

// serves asks the API server whether it serves a resource of certificates.k8s.io/v1beta1.
func (o *Objects) serves(ctx context.Context, resource string) (bool, error) {
	list := &metav1.APIResourceList{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return o.cfg.CertificatesBeta.Get().AbsPath("/apis", certificatesv1beta1.SchemeGroupVersion.String()).Do(ctx).Into(list)
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }), err
}

// tell passes news on to the pods they are for.
func (o *Objects) tell(pods []types.UID) {
	if len(pods) > 0 && o.cfg.OnChange != nil {
		o.cfg.OnChange(pods)
	}
}

func switchedOff(gates string) error {
	return fmt.Errorf("switched off on this node: set %s to true in the featureGates of its configuration", gates)
}
