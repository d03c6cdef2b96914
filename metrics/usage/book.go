package usage

import (
	"context"
	"sync"
	"time"
)

// Labels of CRI sandboxes and containers.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelContainerName = "io.kubernetes.container.name"
)

// identity is what never changes about a container or sandbox.
type identity struct {
	id      string
	sandbox bool
	// namespace, pod and name are from its labels; name is empty for a sandbox.
	namespace, pod, name string
	image                string
	created              time.Time
}

// book keeps the identities of what runs, so that the runtime is asked only when something new appears.
type book struct {
	mu    sync.Mutex
	known map[string]identity
}

// identify gives the identities of these IDs, as far as the runtime knows them, and forgets all others.
func (b *book) identify(ctx context.Context, r Runtime, ids []string) (map[string]identity, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := make(map[string]identity, len(ids))
	missing := map[string]bool{}
	for _, id := range ids {
		if who, ok := b.known[id]; ok {
			kept[id] = who
		} else {
			missing[id] = true
		}
	}
	b.known = kept
	if len(missing) == 0 {
		return kept, nil
	}
	fresh, err := askRuntime(ctx, r, missing)
	if err != nil {
		return kept, err
	}
	// The map handed out is never written again: others may be reading it.
	next := make(map[string]identity, len(ids))
	for id, who := range kept {
		next[id] = who
	}
	for id, who := range fresh {
		next[id] = who
	}
	b.known = next
	return next, nil
}

// askRuntime asks the runtime who these are.
func askRuntime(ctx context.Context, r Runtime, wanted map[string]bool) (map[string]identity, error) {
	sandboxes, containers, err := r.List(ctx)
	if err != nil {
		return nil, err
	}
	found := make(map[string]identity, len(wanted))
	image := ""
	for _, s := range sandboxes {
		if !wanted[s.Id] {
			continue
		}
		if image == "" { // sandboxes made at about the same time have the same
			image, _ = r.SandboxImage(ctx, s.Id)
		}
		found[s.Id] = identity{id: s.Id, sandbox: true, namespace: s.Labels[labelPodNamespace], pod: s.Labels[labelPodName],
			image: image, created: time.Unix(0, s.CreatedAt)}
	}
	for _, c := range containers {
		if !wanted[c.Id] {
			continue
		}
		who := identity{id: c.Id, namespace: c.Labels[labelPodNamespace], pod: c.Labels[labelPodName],
			name: c.Labels[labelContainerName], image: c.GetImage().GetUserSpecifiedImage(), created: time.Unix(0, c.CreatedAt)}
		if who.image == "" {
			who.image = c.GetImage().GetImage()
		}
		found[c.Id] = who
	}
	return found, nil
}
