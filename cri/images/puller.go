package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
)

// Options tune New. The zero value pulls all images side by side, without credentials of the node.
type Options struct {
	// Serial pulls one image after the other (KubeletConfiguration serializeImagePulls).
	Serial bool
	// MaxParallel bounds the pulls at a time (maxParallelImagePulls); 0 means no bound.
	MaxParallel int
	// NodeConfigs are files with the node's own credentials; see NodeConfigFiles. They are read for each pull.
	NodeConfigs []string
	// Providers asks the node's credential providers for logins to a repository's registry, on behalf of a pod; see package
	// provider. It says in problems what it could not get, without any content. nil: there are none.
	Providers func(ctx context.Context, pod *corev1.Pod, repository string) (given []Provided, problems []string)
	// Wanted is told the ID of each image that a pod has asked for and found, or pulled. May be nil.
	Wanted func(id string)
	// Log hears of credentials that cannot be used; nil means nobody does.
	Log *slog.Logger
}

// Provided is what one credential provider has given: logins by docker's patterns of registries.
type Provided struct {
	// Source is the service account for whose token it was given, or zero: then the whole node may use it.
	Source Source
	Logins map[string]*Login
}

// Puller pulls images. It is safe for use by many goroutines. Make one with New.
type Puller struct {
	runtime   *cri.Client
	nodes     []string
	providers func(context.Context, *corev1.Pod, string) ([]Provided, []string)
	log       *slog.Logger
	wanted    func(id string)
	// tokens bounds the pulls at a time; nil means no bound.
	tokens chan struct{}

	mu      sync.Mutex
	flights map[string]*flight
}

// New makes a puller for a runtime.
func New(runtime *cri.Client, o Options) *Puller {
	p := &Puller{runtime: runtime, nodes: o.NodeConfigs, providers: o.Providers, log: o.Log, wanted: o.Wanted,
		flights: map[string]*flight{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Serial:
		p.tokens = make(chan struct{}, 1)
	case o.MaxParallel > 0:
		p.tokens = make(chan struct{}, o.MaxParallel)
	}
	return p
}

// Image is an image on the node.
type Image struct {
	// Ref is what CreateContainer is given; ID is the runtime's name for it. Both are mostly the same.
	Ref, ID string
	// Size is in bytes.
	Size uint64
	// UID or else Username is the user that the image names; neither means root.
	UID      *int64
	Username string
}

// Present finds an image on the node by the name that a pod gives. Its errors are a *Reason: InvalidImageName or
// ImageInspectError.
func (p *Puller) Present(ctx context.Context, image string) (found Image, ok bool, err error) {
	n, err := parseName(image)
	if err != nil {
		return Image{}, false, err
	}
	return p.inspect(ctx, image, &runtimeapi.ImageSpec{Image: n.pull})
}

func (p *Puller) inspect(ctx context.Context, image string, spec *runtimeapi.ImageSpec) (Image, bool, error) {
	got, err := p.runtime.ImageStatus(ctx, spec)
	if err != nil {
		return Image{}, false, inspectFailed(image, err)
	}
	if got == nil {
		return Image{}, false, nil
	}
	if p.wanted != nil {
		p.wanted(got.Id)
	}
	found := Image{Ref: got.Id, ID: got.Id, Size: got.Size, Username: got.Username}
	if got.Uid != nil {
		found.UID = &got.Uid.Value
	}
	return found, true, nil
}

// PullRequest says what to pull.
type PullRequest struct {
	// Image is the name as the pod gives it.
	Image string
	// Pod is for whom; credential providers may be given a token of its service account.
	Pod *corev1.Pod
	// PullSecrets are the pod's, of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg.
	PullSecrets []*corev1.Secret
	// Sandbox is the configuration of the pod's sandbox; runtimes choose the snapshotter and check signatures by it.
	Sandbox *runtimeapi.PodSandboxConfig
	// RuntimeHandler is the pod's, where images are kept per runtime handler (KEP-4216); mostly empty.
	RuntimeHandler string
}

// PullResult is a pulled image.
type PullResult struct {
	Image
	// Took is how long the pull itself took, without waiting for others to end.
	Took time.Duration
	// Source is what the credential that did it came from.
	Source Source
}

// Pull pulls an image, present or not. Requests for the same image with the same credentials share one pull; it is given up
// when the last of them has gone. It tries the credentials that match the image, those of the pull secrets first, then the
// node's, then those of credential providers, and then without any. Its errors are a *Reason, or ctx's own.
func (p *Puller) Pull(ctx context.Context, r PullRequest) (PullResult, error) {
	n, err := parseName(r.Image)
	if err != nil {
		return PullResult{}, err
	}
	j := job{request: r, name: n}
	j.credentials, j.problems = p.credentials(ctx, n, r)
	for _, problem := range j.problems {
		p.log.Warn("pulling without some credentials", "image", r.Image, "problem", problem)
	}
	f := p.join(ctx, j)
	select {
	case <-f.done:
		return f.result, f.err
	case <-ctx.Done():
		p.leave(j.key(), f)
		return PullResult{}, fmt.Errorf("pull image %q: %w", r.Image, context.Cause(ctx))
	}
}

func (p *Puller) credentials(ctx context.Context, n name, r PullRequest) ([]credential, []string) {
	ofPod, problems := secretKeyring(r.PullSecrets)
	ofNode, more := nodeKeyring(p.nodes)
	problems = append(problems, more...)
	var ofProviders keyring
	if p.providers != nil {
		given, more := p.providers(ctx, r.Pod, n.repository)
		problems = append(problems, more...)
		for _, g := range given {
			ofProviders.add(g.Source, g.Logins)
		}
		ofProviders.sort()
	}
	return slices.Concat(ofPod.lookup(n.repository), ofNode.lookup(n.repository), ofProviders.lookup(n.repository)), problems
}

// job is one pull to be made.
type job struct {
	request     PullRequest
	name        name
	credentials []credential
	problems    []string
}

// key is the same for jobs that may share a pull.
func (j job) key() string {
	h := sha256.New()
	for _, c := range j.credentials {
		fmt.Fprintf(h, "%q %q\n", c.login.Username, c.login.Password)
	}
	return fmt.Sprintf("%s\n%s\n%x", j.name.pull, j.request.RuntimeHandler, h.Sum(nil))
}

// flight is a pull under way, shared by those who wait for it.
type flight struct {
	// waiters and started are guarded by the puller's mutex.
	waiters int
	started bool
	image   string
	since   time.Time
	cancel  context.CancelFunc
	// done is closed when result and err are set.
	done   chan struct{}
	result PullResult
	err    error
}

// join finds or starts the flight for a job.
func (p *Puller) join(ctx context.Context, j job) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := j.key()
	f := p.flights[key]
	if f == nil {
		f = &flight{image: j.request.Image, since: time.Now(), done: make(chan struct{})}
		ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
		p.flights[key] = f
		go p.fly(ctx, key, f, j)
	}
	f.waiters++
	return f
}

// leave takes one waiter off a flight; the last one ends it.
func (p *Puller) leave(key string, f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
		p.forget(key, f)
	}
}

// forget makes the next request start a flight of its own. p.mu is held.
func (p *Puller) forget(key string, f *flight) {
	if p.flights[key] == f {
		delete(p.flights, key)
	}
}

// fly waits for its turn and pulls.
func (p *Puller) fly(ctx context.Context, key string, f *flight, j job) {
	defer f.cancel()
	if p.tokens != nil {
		select {
		case p.tokens <- struct{}{}:
			defer func() { <-p.tokens }()
		case <-ctx.Done():
			return // nobody waits any more
		}
	}
	p.mu.Lock()
	f.started = true
	p.mu.Unlock()
	f.result, f.err = p.pull(ctx, j)
	p.mu.Lock()
	p.forget(key, f)
	p.mu.Unlock()
	close(f.done)
}

// pull tries one credential after the other, and then none.
func (p *Puller) pull(ctx context.Context, j job) (PullResult, error) {
	began := time.Now()
	spec := &runtimeapi.ImageSpec{Image: j.name.pull, Annotations: j.request.Sandbox.GetAnnotations(),
		RuntimeHandler: j.request.RuntimeHandler}
	var errs []error
	for _, c := range append(slices.Clip(j.credentials), credential{}) {
		var auth *runtimeapi.AuthConfig
		if c.login != nil {
			auth = &runtimeapi.AuthConfig{Username: c.login.Username, Password: c.login.Password}
		}
		ref, err := p.runtime.PullImage(ctx, spec, auth, j.request.Sandbox)
		if err == nil {
			return p.pulled(ctx, j, spec, ref, PullResult{Took: time.Since(began), Source: c.source})
		}
		if auth != nil || len(errs) == 0 {
			errs = append(errs, err)
		}
		if ctx.Err() != nil || cri.IsUnavailable(err) || cri.IsUnimplemented(err) {
			break // it is not for the credential that this failed
		}
	}
	err := pullFailed(j.request.Image, errs)
	if r, ok := err.(*Reason); ok && len(j.problems) > 0 {
		r.Message += "; " + strings.Join(j.problems, "; ")
	}
	return PullResult{}, err
}

// pulled looks at the image that was pulled: a container's user and size come from there.
func (p *Puller) pulled(ctx context.Context, j job, spec *runtimeapi.ImageSpec, ref string, r PullResult) (PullResult, error) {
	image := j.request.Image
	found, ok, err := p.inspect(ctx, image, spec)
	switch {
	case err != nil:
		return PullResult{}, err
	case !ok:
		return PullResult{}, inspectFailed(image, fmt.Errorf("it was pulled as %s and is gone again", ref))
	}
	r.Image = found
	r.Ref = ref
	return r, nil
}

// Pulling is a pull under way.
type Pulling struct {
	Image string
	Since time.Time
	// Queued: it waits for others to end, by Options.Serial or MaxParallel.
	Queued bool
}

// Pulls lists the pulls under way, the oldest first, so that a pod that waits for one can say so.
func (p *Puller) Pulls() []Pulling {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Pulling
	for _, f := range p.flights {
		all = append(all, Pulling{Image: f.image, Since: f.since, Queued: !f.started})
	}
	slices.SortFunc(all, func(a, b Pulling) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Image, b.Image))
	})
	return all
}
