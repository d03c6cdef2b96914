package objects

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errNoAPI is the error for what only an API server has.
var errNoAPI = errors.New("the node runs without an API server")

// cluster is what static pods share with all others: *Objects, or standalone.
type cluster interface {
	Use(pod types.UID, refs []Ref)
	ServiceAccount(ctx context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error)
	AccountToken(ctx context.Context, pod *corev1.Pod, account types.UID, audience string, expirationSeconds int64) (
		token string, expires time.Time, err error)
	Services(ctx context.Context, namespace string) ([]*corev1.Service, error)
	RuntimeHandler(ctx context.Context, name string) (string, error)
	KnownHandler(name string) string
	Prime(pod *corev1.Pod)
}

// standalone is the cluster of a node without an API server: no services, and only the default runtime class.
type standalone struct{}

func (standalone) Use(types.UID, []Ref) {}

func (standalone) ServiceAccount(_ context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	return nil, fmt.Errorf("get service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, errNoAPI)
}

func (standalone) AccountToken(_ context.Context, pod *corev1.Pod, _ types.UID, _ string, _ int64) (
	string, time.Time, error) {
	return "", time.Time{}, fmt.Errorf("request a token of service account %s/%s: %w",
		pod.Namespace, pod.Spec.ServiceAccountName, errNoAPI)
}

func (standalone) Services(context.Context, string) ([]*corev1.Service, error) { return nil, nil }

func (standalone) RuntimeHandler(_ context.Context, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	return "", fmt.Errorf("failed to lookup RuntimeClass %s: %w", name, errNoAPI)
}

func (standalone) KnownHandler(string) string { return "" }

func (standalone) Prime(*corev1.Pod) {}

// Local provides static pods with the ConfigMaps and Secrets of the manifests. Its methods may be called concurrently.
type Local struct {
	cluster  // its ServiceAccount, RuntimeHandler and Prime are those of Local
	onChange func(pods []types.UID)

	mu         sync.Mutex
	configMaps map[types.NamespacedName]*corev1.ConfigMap
	secrets    map[types.NamespacedName]*corev1.Secret
	pods       map[types.UID][]Ref
}

// NewLocal returns a Local without objects. Services and runtime classes, which static pods share with all others,
// come from api. Nil: there is no API server. onChange is as in Config.
func NewLocal(api *Objects, onChange func(pods []types.UID)) *Local {
	l := &Local{cluster: standalone{}, onChange: onChange, pods: map[types.UID][]Ref{}}
	if api != nil {
		l.cluster = api
	}
	return l
}

// Set replaces the objects of the manifests. Objects that did not change must be the same pointers.
func (l *Local) Set(
	configMaps map[types.NamespacedName]*corev1.ConfigMap, secrets map[types.NamespacedName]*corev1.Secret) {
	l.mu.Lock()
	changed := func(r Ref) bool {
		n := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
		if r.Kind == Secret {
			return l.secrets[n] != secrets[n]
		}
		return l.configMaps[n] != configMaps[n]
	}
	var affected []types.UID
	for pod, refs := range l.pods {
		if slices.ContainsFunc(refs, changed) {
			affected = append(affected, pod)
		}
	}
	l.configMaps, l.secrets = maps.Clone(configMaps), maps.Clone(secrets)
	l.mu.Unlock()
	if len(affected) > 0 && l.onChange != nil {
		l.onChange(affected)
	}
}

// Use sets what a pod uses from now on; see Objects.Use. The services are those of the API server.
func (l *Local) Use(pod types.UID, refs []Ref) {
	l.cluster.Use(pod, onlyServices(refs))
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(refs) == 0 {
		delete(l.pods, pod)
		return
	}
	l.pods[pod] = slices.Clone(refs)
}

// ConfigMap returns a ConfigMap of the manifests, or an error that satisfies apierrors.IsNotFound.
func (l *Local) ConfigMap(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.configMaps[types.NamespacedName{Namespace: namespace, Name: name}]; ok {
		return c, nil
	}
	return nil, noManifest(key{ConfigMap, namespace, name})
}

// Secret returns a Secret of the manifests, or an error that satisfies apierrors.IsNotFound.
func (l *Local) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.secrets[types.NamespacedName{Namespace: namespace, Name: name}]; ok {
		return s, nil
	}
	return nil, noManifest(key{Secret, namespace, name})
}

func noManifest(k key) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure,
		Code:   http.StatusNotFound,
		Reason: metav1.StatusReasonNotFound,
		Message: fmt.Sprintf("%s %q of namespace %s is in no manifest: add it to the manifest directory",
			k.kind, k.name, k.namespace),
		Details: &metav1.StatusDetails{Kind: k.kind.resource(), Name: k.name},
	}}
}

// PullSecrets is as in Objects.
func (l *Local) PullSecrets(ctx context.Context, pod *corev1.Pod) ([]*corev1.Secret, []string, error) {
	return pullSecrets(ctx, pod, l.Secret)
}

// Token returns an error: a static pod has no service account.
func (l *Local) Token(_ context.Context, pod *corev1.Pod, _ string, _ int64) (string, time.Time, error) {
	return "", time.Time{}, fmt.Errorf("request a token for pod %s/%s: a static pod has no service account",
		pod.Namespace, pod.Name)
}

// TrustBundles returns an error: a static pod does not depend on objects of the cluster.
func (l *Local) TrustBundles(context.Context, *corev1.ClusterTrustBundleProjection) ([]string, error) {
	return nil, errors.New("static pods may not use ClusterTrustBundle projected volume sources")
}

// PodCertificate returns an error: a static pod has no service account.
func (l *Local) PodCertificate(context.Context, *corev1.Pod, string, int, *tls.Certificate, time.Time) (
	*tls.Certificate, time.Time, error) {
	return nil, time.Time{}, errors.New("static pods may not use podCertificate projected volume sources")
}

// localTimeout is how long a static pod waits for the services: the pod may be the API server itself.
const localTimeout = time.Second

// Services returns the services of the API server; none if they cannot be read in time.
func (l *Local) Services(ctx context.Context, namespace string) ([]*corev1.Service, error) {
	bounded, cancel := context.WithTimeout(ctx, localTimeout)
	defer cancel()
	all, err := l.cluster.Services(bounded, namespace)
	if err != nil && ctx.Err() == nil {
		return nil, nil
	}
	return all, err
}

func onlyServices(refs []Ref) (services []Ref) {
	for _, r := range refs {
		if r.Kind == Services {
			services = append(services, r)
		}
	}
	return services
}
