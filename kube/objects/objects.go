package objects

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/latest"
)

// linger is how long an object is kept and watched after its last user: CronJobs and rollouts soon use it again.
const linger = time.Minute

// Kind is a kind of object that pods refer to by name.
type Kind string

// The kinds.
const (
	ConfigMap Kind = "ConfigMap"
	Secret    Kind = "Secret"
	// TrustBundles stands for all ClusterTrustBundles: a volume selects those that it shows by label.
	TrustBundles Kind = "ClusterTrustBundles"
	// Services stands for the services of a namespace, which the containers of a pod see as environment
	// variables. They are remembered while a pod uses them, for the time when they cannot be read.
	Services Kind = "Services"
)

// Ref names an object which a pod uses.
type Ref struct {
	Kind            Kind
	Namespace, Name string
	// Watch is true if changes matter: a volume shows the object. Otherwise it is read for each start of a container,
	// for the environment.
	Watch bool
}

type key struct {
	kind            Kind
	namespace, name string
}

func (k key) String() string {
	if k.name == "" { // all of the kind
		return string(k.kind)
	}
	return fmt.Sprintf("%s %s/%s", k.kind, k.namespace, k.name)
}

func (r Ref) key() key { return key{r.Kind, r.Namespace, r.Name} }

// Config is the configuration of an Objects.
type Config struct {
	// Core and Node speak to /api/v1 and /apis/node.k8s.io/v1.
	Core, Node rest.Interface
	// Certificates speaks to /apis/certificates.k8s.io/v1.
	Certificates rest.Interface
	// TrustBundles and PodCertificates are the feature gates for volumes that show ClusterTrustBundles and certificates of
	// pods.
	TrustBundles, PodCertificates bool
	// ServiceAccounts says that images may be pulled with tokens of service accounts: Prime reads those of the pods.
	ServiceAccounts bool
	// NodeName and NodeUID identify this node in PodCertificateRequests.
	NodeName string
	NodeUID  func(ctx context.Context) (types.UID, error)
	// Event writes an event about a pod.
	Event func(pod *corev1.Pod, eventType, reason, message string)
	// OnChange receives the UIDs of pods that use an object which was created, changed or deleted. It must not block.
	OnChange func(pods []types.UID)
	// Log receives why an object cannot be kept up to date.
	Log *slog.Logger
}

// Settings returns what an Objects needs of the configuration. The caller adds the rest.
func Settings(c *config.Config) Config {
	return Config{
		TrustBundles:    c.Gate("ClusterTrustBundle") && c.Gate("ClusterTrustBundleProjection"),
		PodCertificates: c.Gate("PodCertificateRequest"),
		ServiceAccounts: c.Providers.Config != "" && c.Gate("KubeletServiceAccountTokenForCredentialProviders"),
		NodeName:        c.Node.Name,
	}
}

func (c *Config) notify(pods []types.UID) {
	if len(pods) > 0 && c.OnChange != nil {
		c.OnChange(pods)
	}
}

// apiServer makes the requests that pods wait for, within the limits of the limiter.
type apiServer struct {
	cfg     Config
	limiter *limiter
}

// Objects provides objects of the API server. Its methods may be called concurrently. What they return is shared and
// must not be changed. Of the metadata of ConfigMaps and Secrets only the identity is kept.
type Objects struct {
	*apiServer
	ctx    context.Context // of the watches; ended by Close
	cancel context.CancelFunc
	alive  sync.WaitGroup

	mu      sync.Mutex
	entries map[key]*entry
	pods    map[types.UID][]Ref

	// priming is held during Prime, so that objects are read one after the other.
	priming      sync.Mutex
	services     services
	accounts     remembered[*corev1.ServiceAccount] // by UID of the pod
	classes      remembered[string]                 // handlers, by name of the runtime class
	certificates podCertificates
}

// New returns an Objects without objects. Close ends it.
func New(cfg Config) *Objects {
	o := &Objects{
		apiServer: &apiServer{cfg, newLimiter()},
		entries:   map[key]*entry{},
		pods:      map[types.UID][]Ref{},
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.certificates = podCertificates{apiServer: o.apiServer, run: o.run, sources: map[certSource]*podCertificate{}}
	return o
}

// run starts work that stop or Close ends.
func (o *Objects) run(work func(ctx context.Context)) (stop context.CancelFunc) {
	ctx, stop := context.WithCancel(o.ctx)
	o.alive.Go(func() { work(ctx) })
	return stop
}

// Close ends all watches.
func (o *Objects) Close() {
	o.cancel()
	o.alive.Wait()
}

// Use sets what a pod uses from now on, in place of an earlier call. Nil means that the pod is gone.
//
// It returns at once. Objects with Watch are read and watched from now on, so that they are known when they are needed.
func (o *Objects) Use(pod types.UID, refs []Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if refs == nil {
		o.certificates.forget(pod)
	}
	before := o.pods[pod]
	if slices.Equal(before, refs) {
		return
	}
	if len(refs) == 0 {
		delete(o.pods, pod)
		o.accounts.Delete(pod)
	} else {
		o.pods[pod] = slices.Clone(refs)
	}
	now := map[key]bool{} // value: whether to watch. A pod may name an object in several places.
	for _, r := range refs {
		if r.Kind != Services {
			now[r.key()] = now[r.key()] || r.Watch
		}
	}
	for k, watch := range now {
		e := o.entries[k]
		if e == nil || e.outdated() {
			e = newEntry(k)
			o.entries[k] = e
		}
		if _, old := e.users[pod]; !old && immutable(e.obj) {
			e.confirm = true
		}
		e.users[pod] = watch
		o.updateWatch(e)
	}
	for _, r := range before {
		if _, still := now[r.key()]; still {
			continue
		}
		if e := o.entries[r.key()]; e != nil {
			delete(e.users, pod)
			o.updateWatch(e)
		}
	}
	o.services.keepOnly(o.namespaces())
}

// updateWatch starts the watch of e if it is wanted, and a timer for its end if it no longer is. The caller holds the
// lock.
func (o *Objects) updateWatch(e *entry) {
	wanted := e.wantsWatch()
	if !wanted && (len(e.users) == 0 || e.stop != nil) {
		if e.expiry == nil {
			e.expiry = time.AfterFunc(linger, func() { o.expire(e) })
		}
		return
	}
	if e.expiry != nil {
		e.expiry.Stop()
		e.expiry = nil
	}
	if wanted && e.stop == nil {
		if latest.Closed(e.known) { // what was read before may be old
			e.known = make(chan struct{})
		}
		e.stop = o.run(func(ctx context.Context) { o.follow(ctx, e) })
	}
}

// expire ends the watch of an entry that has not been wanted for a while, and removes the entry if no pod uses it.
func (o *Objects) expire(e *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e.expiry = nil
	if e.wantsWatch() {
		return
	}
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
	if len(e.users) == 0 && o.entries[e.key] == e {
		delete(o.entries, e.key)
	}
}

// namespaces returns the namespaces whose services pods use. The caller holds the lock.
func (o *Objects) namespaces() map[string]bool {
	used := map[string]bool{}
	for _, refs := range o.pods {
		for _, r := range refs {
			if r.Kind == Services {
				used[r.Namespace] = true
			}
		}
	}
	return used
}
