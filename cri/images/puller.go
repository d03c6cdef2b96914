package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images/records"
	"github.com/nodelet/nodelet/internal/flight"
)

// Config says how a Puller pulls.
type Config struct {
	// MaxParallel bounds the number of pulls at a time (maxParallelImagePulls); 0 means no bound.
	MaxParallel int
	// QPS bounds the number of pulls that start in a second (registryPullQPS), after a burst; 0 means no bound.
	QPS   float32
	Burst int
	// NodeConfigs are files with the node's own credentials; see nodeConfigFiles. They are read for each pull.
	NodeConfigs []string
	// Providers asks the node's credential providers for logins to a repository's registry, on behalf of a pod; see
	// package provider. problems says what could not be had, without any content.
	Providers func(ctx context.Context, pod *corev1.Pod, repository string) (given []Provided, problems []string)
	// Records say which pod may use an image that is present. nil: every pod may (KubeletEnsureSecretPulledImages is off).
	Records Records
	// Wanted receives the ID of each image that a pod is about to use.
	Wanted func(id string)
	// Pulled is called after a pull.
	Pulled func()
	// Log receives problems with credentials.
	Log *slog.Logger
}

// Settings returns what a Puller needs of the configuration. The caller adds the rest. Only written limits count: the
// kubelet's defaults are one pull at a time and five in a second.
func Settings(c *config.Config) Config {
	k := &c.Kubelet
	out := Config{NodeConfigs: nodeConfigFiles(c.Paths.Root)}
	switch {
	case *k.SerializeImagePulls && c.Written("serializeImagePulls"):
		out.MaxParallel = 1
	case k.MaxParallelImagePulls != nil:
		out.MaxParallel = int(*k.MaxParallelImagePulls)
	}
	if c.Written("registryPullQPS") || c.Written("registryBurst") {
		out.QPS, out.Burst = float32(*k.RegistryPullQPS), int(k.RegistryBurst)
	}
	return out
}

// Provided is the answer of one credential provider: logins by docker's patterns of registries.
type Provided struct {
	// Source is the service account for whose token it was given, or zero: then the whole node may use it.
	Source Source
	// Logins is nil if the provider failed. A service account may then use the images that were pulled for it.
	Logins map[string]*Login
}

// Puller makes images present. It is safe for use by many goroutines. Create it with New.
type Puller struct {
	runtime *cri.Client
	cfg     Config
	log     *slog.Logger
	// tokens bounds the number of pulls at a time; nil means no bound.
	tokens chan struct{}
	// rate delays the start of pulls; nil means no delay.
	rate flowcontrol.RateLimiter
	// flights are the pulls under way, shared by all requests with the same key.
	flights flight.Group[Result]
	looks   looks
}

// New returns a Puller for a runtime.
func New(runtime *cri.Client, cfg Config) *Puller {
	if cfg.Records == nil {
		cfg.Records = everyPod{}
	}
	p := &Puller{runtime: runtime, cfg: cfg, log: cfg.Log}
	if cfg.MaxParallel > 0 {
		p.tokens = make(chan struct{}, cfg.MaxParallel)
	}
	if cfg.QPS > 0 {
		p.rate = flowcontrol.NewTokenBucketRateLimiter(cfg.QPS, max(1, cfg.Burst))
	}
	if open := cfg.Records.Unresolved(); len(open) > 0 {
		p.resolveLater(open...)
	}
	return p
}

// Image is an image on the node.
type Image struct {
	// ID is the runtime's name for it, also for CreateContainer.
	ID string
	// Size is in bytes.
	Size uint64
	// UID or else Username is the user that the image names; neither means root.
	UID      *int64
	Username string
}

// Request is an image that a pod needs.
type Request struct {
	// Image is the name as the pod gives it, and Policy when to pull it.
	Image  string
	Policy corev1.PullPolicy
	// Pod is the pod; credential providers may be given a token of its service account.
	Pod *corev1.Pod
	// Secrets reads the pod's pull secrets, of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg. It is
	// called at most once, and only if credentials are needed.
	Secrets func(context.Context) []*corev1.Secret
	// Sandbox returns the configuration of the pod's sandbox, by which runtimes choose the snapshotter and check
	// signatures. It is called at most once, and only before a pull.
	Sandbox func() (*runtimeapi.PodSandboxConfig, error)
	// Event receives the pod's events about the image: Pulling and Pulled.
	Event func(reason, message string)
}

// Result is an image that a pod may use.
type Result struct {
	Image
	// Pulled: the image was pulled for this request, in the time Took without waiting for other pulls to end.
	Pulled bool
	Took   time.Duration
	// used is the index of the credential of the pull among those of the job, if it has any.
	used int
}

// Ensure makes an image present by its pull policy. An image that is present already counts only if the pod may use it.
// Errors are a *Reason, ctx's own, or that of Request.Sandbox.
func (p *Puller) Ensure(ctx context.Context, r Request) (Result, error) {
	n, err := parseName(r.Image)
	if err != nil {
		return Result{}, err
	}
	lookUp := sync.OnceValues(func() ([]credential, []string) { return p.credentials(ctx, n, r) })
	if r.Policy != corev1.PullAlways {
		found, usable, err := p.usable(ctx, n, r, lookUp)
		if err != nil || usable {
			return Result{Image: found}, err
		}
	}
	if r.Policy == corev1.PullNever {
		return Result{}, neverPull(r.Image)
	}
	sandbox, err := r.Sandbox()
	if err != nil {
		return Result{}, err
	}
	r.Event("Pulling", fmt.Sprintf("Pulling image %q", r.Image))
	began := time.Now()
	j := job{image: r.Image, name: n, sandbox: sandbox}
	j.credentials, j.problems = lookUp()
	j.credentials = slices.DeleteFunc(slices.Clone(j.credentials), func(c credential) bool { return c.login == nil })
	got, err := p.share(ctx, j)
	if err != nil {
		return Result{}, err
	}
	p.cfg.Pulled()
	r.Event("Pulled", fmt.Sprintf("Successfully pulled image %q in %s (%s including waiting). Image size: %d bytes.",
		r.Image, got.Took.Truncate(time.Millisecond), time.Since(began).Truncate(time.Millisecond), got.Size))
	return got, nil
}

// usable looks for the image on the node and reports whether the pod may use it.
func (p *Puller) usable(ctx context.Context, n name, r Request,
	lookUp func() ([]credential, []string)) (Image, bool, error) {
	found, present, err := p.inspect(ctx, r.Image, &runtimeapi.ImageSpec{Image: n.pull})
	if err != nil || !present {
		return Image{}, false, err
	}
	if !p.cfg.Records.Recorded(found.ID) { // then a pull that has ended without a record may have brought it, by any name
		p.looks.share(ctx, func() { p.resolve(ctx, p.cfg.Records.Unresolved()...) })
	}
	message := fmt.Sprintf("Container image %q already present on machine", r.Image)
	ofPod := func() records.Credentials {
		all, _ := lookUp()
		return accessOfAll(all)
	}
	if ok, err := p.cfg.Records.Allowed(ctx, r.Image, found.ID, ofPod); err != nil {
		return Image{}, false, inspectFailed(r.Image, err)
	} else if !ok {
		return Image{}, false, nil
	}
	if p.cfg.Records.Enforced() {
		message += " and can be accessed by the pod"
	}
	r.Event("Pulled", message)
	return found, true, nil
}

func (p *Puller) inspect(ctx context.Context, image string, spec *runtimeapi.ImageSpec) (Image, bool, error) {
	got, err := p.runtime.ImageStatus(ctx, spec)
	if err != nil {
		return Image{}, false, inspectFailed(image, err)
	}
	if got == nil {
		return Image{}, false, nil
	}
	p.cfg.Wanted(got.Id)
	found := Image{ID: got.Id, Size: got.Size, Username: got.Username}
	if got.Uid != nil {
		found.UID = &got.Uid.Value
	}
	return found, true, nil
}

// credentials finds the credentials for an image: those of the pull secrets first, then the node's, then those of
// credential providers. They end with the service accounts whose provider failed, without a login.
func (p *Puller) credentials(ctx context.Context, n name, r Request) ([]credential, []string) {
	ofPod, problems := secretKeyring(r.Secrets(ctx))
	ofNode, more := nodeKeyring(p.cfg.NodeConfigs)
	problems = append(problems, more...)
	var ofProviders, failed keyring
	given, more := p.cfg.Providers(ctx, r.Pod, n.repository)
	problems = append(problems, more...)
	for _, g := range given {
		ofProviders.add(g.Source, g.Logins)
		if g.Logins == nil && g.Source.ServiceAccount {
			failed = append(failed, credential{source: g.Source})
		}
	}
	ofProviders.sort()
	for _, problem := range problems {
		p.log.Warn("cannot use some registry credentials", "image", r.Image, "problem", problem)
	}
	return slices.Concat(ofPod.lookup(n.repository), ofNode.lookup(n.repository),
		ofProviders.lookup(n.repository), failed), problems
}

// job is one pull to be made.
type job struct {
	image       string
	name        name
	credentials []credential
	problems    []string
	sandbox     *runtimeapi.PodSandboxConfig
}

// pull tries one credential after the other. It pulls without any only if there is none, so that a wrong one is seen.
func (p *Puller) pull(ctx context.Context, j job) (Result, error) {
	began := time.Now()
	spec := &runtimeapi.ImageSpec{Image: j.name.pull, Annotations: j.sandbox.GetAnnotations()}
	tries := j.credentials
	if len(tries) == 0 {
		tries = []credential{{}}
	}
	var errs []error
	for used, c := range tries {
		var auth *runtimeapi.AuthConfig
		if c.login != nil {
			auth = &runtimeapi.AuthConfig{Username: c.login.Username, Password: c.login.Password}
		}
		ref, err := p.runtime.PullImage(ctx, spec, auth, j.sandbox)
		if err == nil {
			return p.pulled(ctx, j, spec, ref, Result{Pulled: true, Took: time.Since(began), used: used})
		}
		errs = append(errs, err)
		if ctx.Err() != nil || cri.IsUnavailable(err) || cri.IsUnimplemented(err) {
			break // another credential cannot help
		}
	}
	return Result{}, pullFailed(j.image, errs)
}

// explain adds the problems of the job's own credentials to the error of a pull, which other jobs may have too.
func (j job) explain(err error) error {
	r, ok := errors.AsType[*Reason](err)
	if !ok || len(j.problems) == 0 {
		return err
	}
	own := *r
	own.Message += "; " + strings.Join(j.problems, "; ")
	return &own
}

// pulled inspects the image that was pulled: a container's user and size come from there.
func (p *Puller) pulled(ctx context.Context, j job, spec *runtimeapi.ImageSpec, ref string, r Result) (Result, error) {
	found, ok, err := p.inspect(ctx, j.image, spec)
	switch {
	case err != nil:
		return Result{}, err
	case !ok:
		return Result{}, inspectFailed(j.image, fmt.Errorf("it was removed after its pull as %s", ref))
	}
	r.Image = found
	return r, nil
}
