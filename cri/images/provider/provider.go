package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	config "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/internal/flight"
	"github.com/nodelet/nodelet/internal/limiter"
)

// tokenSeconds is the lifetime of the tokens for providers: the API server's default.
const tokenSeconds = 3600

const (
	// maxRuns bounds how often the program of a provider runs at once: it counts against the agent's limit of memory.
	maxRuns = 16
	// runCountFor is how long a run counts. One that takes longer waits for something else, such as a registry that does
	// not answer, and must hardly delay the pods whose registries do.
	runCountFor = 15 * time.Second
)

// Options configure the credential providers.
type Options struct {
	// Config is a CredentialProviderConfig, or a directory of them; BinDir is where the programs are.
	Config, BinDir string
	// Tokens lets providers have tokenAttributes: the feature gate KubeletServiceAccountTokenForCredentialProviders.
	Tokens bool
	// Account reads a pod's service account, and Token asks for a token that is bound to the pod, of the account with
	// this UID and no other of its name. Only providers with tokenAttributes need them.
	Account func(ctx context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error)
	Token   func(ctx context.Context, pod *corev1.Pod, account types.UID, audience string, expirationSeconds int64) (
		token string, expires time.Time, err error)
	// Ran receives each run of the program of a provider that was not given up.
	Ran func(provider string, took time.Duration, err error)
	// Log receives the reason why a provider gave no login.
	Log *slog.Logger
}

// Providers are the node's credential providers. They are safe for use by many goroutines. Create them with New.
type Providers struct {
	// Hash is that of the files of the configuration, as the kubelet shows it; empty without providers.
	Hash string

	all []*provider
	log *slog.Logger
}

// New reads the configuration and finds the programs. Without both there are no providers. Its error is for the
// administrator.
func New(o Options) (*Providers, error) {
	if o.Config == "" && o.BinDir == "" {
		return &Providers{}, nil
	}
	configured, hash, err := read(o.Config, o.Tokens)
	if err != nil {
		return nil, fmt.Errorf("--image-credential-provider-config: %w", err)
	}
	p := &Providers{Hash: hash, log: o.Log}
	for _, c := range configured {
		program, err := find(o.BinDir, c)
		if err != nil {
			return nil, fmt.Errorf("--image-credential-provider-bin-dir: %w", err)
		}
		program.ran = o.Ran
		one := &provider{program: program, run: program.run, turns: limiter.New(maxRuns, maxRuns, runCountFor),
			defaultHold: c.DefaultCacheDuration.Duration, tokens: c.TokenAttributes, account: o.Account, token: o.Token}
		for _, text := range c.MatchImages {
			pattern, err := images.ParsePattern(text)
			if err != nil {
				return nil, err
			}
			one.patterns = append(one.patterns, pattern)
		}
		p.all = append(p.all, one)
	}
	return p, nil
}

// Ask returns the logins of the providers for a repository with its registry, such as registry.example.com/team/app, in
// the order of the configuration. A provider that fails gives none, but perhaps the service account for which it was
// asked: the log has the reason, and problems, which users of the cluster may see, only the name of the provider.
func (p *Providers) Ask(ctx context.Context, pod *corev1.Pod,
	repository string) (given []images.Provided, problems []string) {
	for _, one := range p.all {
		if !one.serves(repository) {
			continue
		}
		answer, err := one.ask(ctx, pod, repository)
		if err != nil {
			p.log.Warn("credential provider failed", "provider", one.program.name, "repository", repository, "err", err)
			problems = append(problems, fmt.Sprintf("credential provider %s gave no login; the log of the node agent says why",
				one.program.name))
			if !answer.Source.ServiceAccount {
				continue
			}
		}
		given = append(given, answer)
	}
	return given, problems
}

// provider is one credential provider.
type provider struct {
	program *program
	// run makes one request to the program.
	run      func(context.Context, api.CredentialProviderRequest) (*api.CredentialProviderResponse, error)
	turns    *limiter.Limiter
	patterns []images.Pattern
	// defaultHold is how long an answer without a duration is cached.
	defaultHold time.Duration
	// tokens is nil for a provider that needs no token.
	tokens  *config.ServiceAccountTokenAttributes
	account func(context.Context, *corev1.Pod) (*corev1.ServiceAccount, error)
	token   func(context.Context, *corev1.Pod, types.UID, string, int64) (string, time.Time, error)

	cache  cache
	asking flight.Group[fetched]
}

// fetched is an answer that was asked for on behalf of one of those who share it.
type fetched struct {
	logins map[string]*images.Login
	by     identity
}

func (p *provider) serves(repository string) bool {
	return slices.ContainsFunc(p.patterns, func(q images.Pattern) bool { return q.Matches(repository) })
}

// ask returns the cached answer, or else runs the program. The service account may be known also with an error. What
// has failed with the token of another pod, which may have been deleted meanwhile, may succeed with that of this one.
func (p *provider) ask(ctx context.Context, pod *corev1.Pod, repository string) (images.Provided, error) {
	who, wanted, err := p.identify(ctx, pod)
	if err != nil || !wanted {
		return images.Provided{}, err
	}
	given := images.Provided{Source: who.source}
	if logins, ok := p.cache.find(who, repository, time.Now()); ok {
		given.Logins = logins
		return given, nil
	}
	share := func() (fetched, error) {
		return p.asking.Do(ctx, key(repository, who), func(ctx context.Context) (fetched, error) {
			logins, err := p.fetch(ctx, who, repository)
			return fetched{logins, who}, err
		})
	}
	got, err := share()
	if err != nil && ctx.Err() == nil && who.pod != nil && who.pod.UID != got.by.pod.UID {
		got, err = share() // with the others: the program may have failed for a reason that is not the token
	}
	given.Logins = got.logins
	return given, err
}

// fetch asks the program. The token comes before its turn, because the API server may not answer. During that and the
// wait for the turn an answer for another repository may have come that counts for this one, too.
func (p *provider) fetch(ctx context.Context, who identity, repository string) (
	logins map[string]*images.Login, err error) {
	request := api.CredentialProviderRequest{Image: repository, ServiceAccountAnnotations: who.annotations}
	var expires time.Time
	if who.pod != nil {
		if request.ServiceAccountToken, expires, err = p.token(ctx, who.pod, who.source.UID,
			p.tokens.ServiceAccountTokenAudience, tokenSeconds); err != nil {
			return nil, err
		}
	}
	err = p.turns.Do(ctx, func() (err error) {
		var ok bool
		if logins, ok = p.cache.find(who, repository, time.Now()); !ok {
			logins, err = p.fetchWith(ctx, who, request, expires)
		}
		return err
	})
	return logins, err
}

// fetchWith runs the program and caches its answer. A token in the request expires then.
func (p *provider) fetchWith(ctx context.Context, who identity, request api.CredentialProviderRequest,
	expires time.Time) (map[string]*images.Login, error) {
	answer, err := p.run(ctx, request)
	if err != nil {
		return nil, err
	}
	scope, err := scopeOf(answer.CacheKeyType, request.Image)
	if err != nil {
		return nil, err
	}
	logins := make(map[string]*images.Login, len(answer.Auth))
	for registry, a := range answer.Auth {
		if who.pod != nil && !who.own && a.Password == request.ServiceAccountToken {
			return nil, errors.New("it returned the service account's token as the password; " +
				`that needs tokenAttributes.cacheType: "Token"`)
		}
		if a != (api.AuthConfig{}) {
			logins[registry] = &images.Login{Username: a.Username, Password: a.Password}
		}
	}
	hold := p.defaultHold
	if answer.CacheDuration != nil {
		hold = answer.CacheDuration.Duration
	}
	if who.own {
		hold = min(hold, time.Until(expires)*4/5) // the kubelet renews tokens then
	}
	p.cache.keep(key(scope, who), logins, time.Now(), hold)
	return logins, nil
}

// everywhere is the scope of an answer for all registries; it cannot be the name of a repository.
const everywhere = "<global>"

// scopeOf returns the scope of an answer.
func scopeOf(t api.PluginCacheKeyType, repository string) (string, error) {
	switch t {
	case api.ImagePluginCacheKeyType:
		return repository, nil
	case api.RegistryPluginCacheKeyType:
		return registryOf(repository), nil
	case api.GlobalPluginCacheKeyType:
		return everywhere, nil
	}
	return "", errors.New("its answer has a cacheKeyType other than Image, Registry and Global")
}

func registryOf(repository string) string {
	registry, _, _ := strings.Cut(repository, "/")
	return registry
}
