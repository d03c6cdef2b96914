package pods

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/latest"
)

// Config names the sources of pods. A node has at least one.
type Config struct {
	// NodeName is the node's name.
	NodeName string
	// API is true if there is an API server: static pods may not use its objects, and Sets are not Synced before
	// FollowAPI has delivered. Otherwise the node is standalone.
	API bool
	// Manifests is a directory of manifests, or one file (staticPodPath). Empty for none.
	Manifests string
	// FileCheck is how often Manifests is read without an event of inotify (fileCheckFrequency, 20 s by default).
	FileCheck time.Duration
	// URL serves manifests (staticPodURL). Empty for none.
	URL string
	// URLHeader is sent with requests to URL (staticPodURLHeader).
	URLHeader http.Header
	// URLCheck is how often URL is read (httpCheckFrequency, 20 s by default).
	URLCheck time.Duration
	// Adopt returns the static pods that run on this node already. It is called once, before the manifests are read,
	// and may wait for the runtime. They keep running if what they refer to is missing. If the file of a manifest has
	// not changed since it was seen, its pod keeps the UID that it runs under, which an agent of another version may
	// have chosen.
	Adopt func(ctx context.Context) map[types.NamespacedName]Running
	// Event records an event about the node for each new problem with a manifest.
	Event func(eventType, reason, message string)
	// Log receives problems when they appear and when they are solved.
	Log *slog.Logger
}

// Settings returns what Sources need of the configuration. The caller adds the rest.
func Settings(c *config.Config) Config {
	return Config{
		NodeName:  c.Node.Name,
		Manifests: c.Kubelet.StaticPodPath,
		FileCheck: c.Kubelet.FileCheckFrequency.Duration,
		URL:       c.Kubelet.StaticPodURL,
		URLHeader: http.Header(c.Kubelet.StaticPodURLHeader),
		URLCheck:  c.Kubelet.HTTPCheckFrequency.Duration,
	}
}

// Sources reads all sources and delivers the full set of pods whenever it changes.
type Sources struct {
	cfg     Config
	updates latest.Value[*Set]
	inbox   map[Source]latest.Value[delivery]
}

// order is the precedence of the sources, for pods that exclude each other.
var order = []Source{SourceAPI, SourceFile, SourceHTTP}

// New returns the sources of cfg; Run starts them.
func New(cfg Config) *Sources {
	for _, check := range []*time.Duration{&cfg.FileCheck, &cfg.URLCheck} {
		if *check <= 0 {
			*check = defaultCheck
		}
	}
	s := &Sources{cfg: cfg, updates: latest.NewValue[*Set](), inbox: map[Source]latest.Value[delivery]{}}
	for source, wanted := range map[Source]bool{
		SourceAPI: cfg.API, SourceFile: cfg.Manifests != "", SourceHTTP: cfg.URL != "",
	} {
		if wanted {
			s.inbox[source] = latest.NewValue[delivery]()
		}
	}
	return s
}

// Deliver calls to with each Set until ctx ends. It misses those between if to is slow.
func (s *Sources) Deliver(ctx context.Context, to func(*Set)) {
	for {
		select {
		case <-ctx.Done():
			return
		case set := <-s.updates:
			to(set)
		}
	}
}

// Run reads the manifests and delivers Sets until ctx ends. FollowAPI adds the API server when there is a connection
// to it.
func (s *Sources) Run(ctx context.Context) {
	var wg sync.WaitGroup
	running := sync.OnceValue(func() map[types.NamespacedName]Running { return s.cfg.Adopt(ctx) })
	if s.cfg.Manifests != "" {
		wg.Go(func() { newDirectory(s.cfg, running()).run(ctx, s.inbox[SourceFile]) })
	}
	if s.cfg.URL != "" {
		wg.Go(func() { newURLSource(s.cfg, running()).run(ctx, s.inbox[SourceHTTP]) })
	}
	s.merge(ctx)
	wg.Wait()
}

// FollowAPI watches the pods that are bound to this node until ctx ends. It is separate from Run because static pods
// must not wait for credentials, and may be the API server itself. Config.API must be set.
func (s *Sources) FollowAPI(ctx context.Context, core rest.Interface) {
	followAPI(ctx, core, s.cfg.NodeName, s.inbox[SourceAPI])
}

// merge merges the newest delivery of each source and delivers the Set.
func (s *Sources) merge(ctx context.Context) {
	newest := map[Source]delivery{}
	var known []Problem
	for {
		var d delivery
		select { // the channel of a source that is not configured is nil and never ready
		case d = <-s.inbox[SourceAPI]:
		case d = <-s.inbox[SourceFile]:
		case d = <-s.inbox[SourceHTTP]:
		case <-ctx.Done():
			return
		}
		newest[d.source] = d
		var all []delivery
		for _, source := range order {
			if s.inbox[source] == nil {
				continue
			}
			d := newest[source]
			d.source = source
			all = append(all, d)
		}
		set := merge(all)
		s.logProblems(known, set.Problems)
		known = set.Problems
		s.updates.Put(set)
	}
}

// logProblems logs new and solved problems, each once.
func (s *Sources) logProblems(before, now []Problem) {
	for _, p := range now {
		if !slices.Contains(before, p) {
			if p.Source != SourceAPI {
				s.cfg.Event(corev1.EventTypeWarning, "BadManifest", p.String())
			}
			s.cfg.Log.Warn("problem with a pod source", "source", p.Source, "file", p.File, "err", p.Message)
		}
	}
	for _, p := range before {
		if !slices.Contains(now, p) {
			s.cfg.Log.Info("problem with a pod source solved", "source", p.Source, "file", p.File, "err", p.Message)
		}
	}
}
