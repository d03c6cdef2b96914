package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodelet/nodelet/kube/client"
)

// maxSelector bounds the label selector of a trust bundle source, as the kubelet does.
const maxSelector = 100 << 10

// trustBundle is the part of a ClusterTrustBundle that is kept.
type trustBundle struct {
	version, signer string
	labels          labels.Set
	pem             string
}

// TrustBundles returns the content of the ClusterTrustBundles that s names: one, or all of a signer that have its
// labels, which may be none. An error satisfies apierrors.IsNotFound if the one does not exist, or if the API server
// does not serve them. They are watched from the first pod that shows some until a while after the last; the call only
// waits for the first answer.
func (o *Objects) TrustBundles(ctx context.Context, s *corev1.ClusterTrustBundleProjection) ([]string, error) {
	if !o.cfg.TrustBundles {
		return nil, gateOff("ClusterTrustBundle and ClusterTrustBundleProjection")
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
			return nil, apierrors.NewNotFound(certificatesv1.Resource("clustertrustbundle"), *s.Name)
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

// bundleSelector returns the selector of a source, nil if the source names its bundle. No selector selects nothing, an
// empty one selects all.
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

// knownBundles returns all bundles. The map is never changed.
func (o *Objects) knownBundles(ctx context.Context) (map[string]*trustBundle, error) {
	o.mu.Lock()
	e := o.entries[key{kind: TrustBundles}]
	o.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("no pod shows ClusterTrustBundles")
	}
	if _, err := o.await(ctx, e); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return e.bundles, nil
}

// bundleSink stores what is watched for e.
type bundleSink struct {
	ctx context.Context
	o   *Objects
	e   *entry
}

func (s *bundleSink) Replace(objs []metav1.Object) {
	next := map[string]*trustBundle{}
	for _, obj := range objs {
		if b, ok := obj.(*certificatesv1.ClusterTrustBundle); ok {
			next[b.Name] = slimBundle(b)
		}
	}
	s.store(func(map[string]*trustBundle) map[string]*trustBundle { return next })
}

func (s *bundleSink) Set(obj metav1.Object) {
	b, ok := obj.(*certificatesv1.ClusterTrustBundle)
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

// Trouble stores the error for pods that wait for bundles. Known bundles stay.
func (s *bundleSink) Trouble(err error) {
	if err == nil {
		return
	}
	if err = s.o.bundleTrouble(s.ctx, err); s.ctx.Err() != nil {
		return
	}
	s.o.logTrouble(s.ctx, s.e.key, err)
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if s.e.bundles == nil {
		s.e.err = err
	}
	s.e.release()
}

// store stores the next state, and notifies the users of e if it differs.
func (s *bundleSink) store(change func(now map[string]*trustBundle) map[string]*trustBundle) {
	s.o.mu.Lock()
	if s.ctx.Err() != nil {
		s.o.mu.Unlock()
		return
	}
	before, known := s.e.bundles, s.e.answered()
	s.e.bundles, s.e.err = change(before), nil
	s.e.release()
	changed := known && (before == nil || !maps.EqualFunc(before, s.e.bundles, sameBundle))
	users := slices.Collect(maps.Keys(s.e.users))
	s.o.mu.Unlock()
	if changed {
		s.o.cfg.notify(users)
	}
}

func sameBundle(a, b *trustBundle) bool { return a.version == b.version }

func slimBundle(b *certificatesv1.ClusterTrustBundle) *trustBundle {
	return &trustBundle{
		version: b.ResourceVersion,
		signer:  b.Spec.SignerName,
		labels:  b.Labels,
		pem:     b.Spec.TrustBundle,
	}
}

// bundleTrouble returns an error that says so if the API server does not serve bundles at all.
func (a *apiServer) bundleTrouble(ctx context.Context, err error) error {
	if !a.lacks(ctx, "clustertrustbundles", err) {
		return err
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonNotFound,
		Message: "the API server does not serve clustertrustbundles of " + certificatesv1.SchemeGroupVersion.String() +
			": Kubernetes 1.37 is needed, with its feature gate ClusterTrustBundle",
	}}
}

// lacks reports whether err comes from an API server that does not serve a resource of certificates.k8s.io/v1: it
// answers nodes with Forbidden, or does not know the path.
func (a *apiServer) lacks(ctx context.Context, resource string, err error) bool {
	if !apierrors.IsForbidden(err) && !errors.Is(err, client.ErrNoPath) {
		return false
	}
	list := &metav1.APIResourceList{}
	err = client.Bounded(ctx, func(ctx context.Context) error {
		return a.cfg.Certificates.Get().AbsPath("/apis", certificatesv1.SchemeGroupVersion.String()).
			Do(ctx).Into(list)
	})
	named := func(r metav1.APIResource) bool { return r.Name == resource }
	return err == nil && !slices.ContainsFunc(list.APIResources, named)
}

func gateOff(gates string) error {
	return fmt.Errorf("disabled on this node: set %s to true in featureGates of its configuration", gates)
}
