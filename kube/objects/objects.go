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
)

// linger is how long an object is kept and watched after its last user went: CronJobs and rollouts come back.
const linger = time.Minute

// Kind is a kind of object that pods refer to by name.
type Kind string

// The kinds.
const (
	ConfigMap Kind = "ConfigMap"
	Secret    Kind = "Secret"
	// TrustBundles stands for all ClusterTrustBundles: which of them a volume shows is known from their labels alone.
	TrustBundles Kind = "ClusterTrustBundles"
	// Services stands for the services of a namespace, of which the containers of a pod are told by environment variables. They
	// are remembered while a pod uses them, for the time when the API server does not answer.
	Services Kind = "Services"
)

// Ref names an object which a pod uses.
type Ref struct {
	Kind            Kind
	Namespace, Name string
	// Watch asks for news: a volume shows the object. Without it the object is read each time it is asked for, as an
	// environment needs it.
	Watch bool
}

type key struct {
	kind            Kind
	namespace, name string
}

func (k key) String() string {
	if k.name == "" { // all there are
		return string(k.kind)
	}
	return fmt.Sprintf("%s %s/%s", k.kind, k.namespace, k.name)
}

func (r Ref) key() key { return key{r.Kind, r.Namespace, r.Name} }

// Config says where objects come from.
type Config struct {
	// Core and Node speak to /api/v1 and /apis/node.k8s.io/v1.
	Core, Node rest.Interface
	// CertificatesBeta speaks to /apis/certificates.k8s.io/v1beta1.
	CertificatesBeta rest.Interface
	// TrustBundles and PodCertificates say whether volumes may show ClusterTrustBundles and certificates of pods: the feature gates.
	TrustBundles, PodCertificates bool
	// NodeName and NodeUID are this node's, as requests for certificates of pods name it.
	NodeName string
	NodeUID  func(ctx context.Context) (types.UID, error)
	// Event tells people something about a pod.
	Event func(pod *corev1.Pod, eventType, reason, message string)
	// OnChange is told the UIDs of pods which use an object that came, changed or went. It must not block.
	OnChange func(pods []types.UID)
	// Log receives why an object cannot be kept fresh.
	Log *slog.Logger
}

// Objects gives out objects of the API server. Its methods may be called concurrently. What they return is shared: it must
// not be changed. Of the metadata of ConfigMaps and Secrets only the identity is kept.
type Objects struct {
	cfg    Config
	ctx    context.Context // of the watches; ended by Close
	cancel context.CancelFunc
	alive  sync.WaitGroup
	rush   *rush

	mu      sync.Mutex
	entries map[key]*entry
	pods    map[types.UID][]Ref

	// priming is held while what running pods need is read, so that it is read one after the other.
	priming  sync.Mutex
	services services
	classes  classes

	certificates podCertificates
}

// New makes an Objects that holds nothing. Close ends it.
func New(cfg Config) *Objects {
	o := &Objects{cfg: cfg, rush: newRush(), entries: map[key]*entry{}, pods: map[types.UID][]Ref{}}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o
}

// Close ends all watches.
func (o *Objects) Close() {
	o.cancel()
	o.alive.Wait()
}

// Use says what a pod uses from now on, in place of what was said before. Nil says that the pod is gone.
//
// It returns at once. Objects with Watch begin to be read and watched now, so that they are there when asked for.
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
	} else {
		o.pods[pod] = slices.Clone(refs)
	}
	now := map[key]bool{} // value: whether to watch; one pod may name an object in several places
	for _, r := range refs {
		if r.Kind != Services {
			now[r.key()] = now[r.key()] || r.Watch
		}
	}
	for k, watch := range now {
		e := o.entries[k]
		if e == nil {
			e = newEntry(k)
			o.entries[k] = e
		}
		e.users[pod] = watch
		o.tend(e)
	}
	for _, r := range before {
		if _, still := now[r.key()]; still {
			continue
		}
		if e := o.entries[r.key()]; e != nil {
			delete(e.users, pod)
			o.tend(e)
		}
	}
	o.services.keepOnly(o.namespaces())
}

// tend starts e's watch if it is wanted, and arranges its end if it no longer is. The caller holds the lock.
func (o *Objects) tend(e *entry) {
	switch {
	case e.wantsWatch():
		if e.parting != nil {
			e.parting.Stop()
			e.parting = nil
		}
		if e.stop == nil {
			var ctx context.Context
			ctx, e.stop = context.WithCancel(o.ctx)
			o.alive.Go(func() { o.follow(ctx, e) })
		}
	case len(e.users) > 0 && e.stop == nil:
		if e.parting != nil {
			e.parting.Stop()
			e.parting = nil
		}
	case e.parting == nil:
		e.parting = time.AfterFunc(linger, func() { o.part(e) })
	}
}

// part ends the watch of an entry that has not been wanted for a while, and forgets the entry if nobody uses it.
func (o *Objects) part(e *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e.parting = nil
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
