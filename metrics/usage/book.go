package usage

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// identity has the properties of a container or sandbox that never change.
type identity struct {
	id      string
	sandbox bool
	name    string // from its labels; POD for a sandbox of CRI-O, empty for other sandboxes
	attempt uint32
	image   string
	created time.Time
	// partly: the image is not known because the runtime gave no answer about it.
	partly bool
}

// book caches the identities of running containers and sandboxes, so that the runtime is asked only about new ones.
type book struct {
	mu sync.Mutex
	// known is replaced as a whole and never changed: callers read it without the lock.
	known map[string]identity
}

// identify returns the identities of those of the IDs that the runtime knows. With an error it returns those that were
// cached. It removes all other IDs from the cache, and adds none that is known only partly.
func (b *book) identify(ctx context.Context, r Runtime, ids []string) (map[string]identity, error) {
	before := b.read()
	kept, missing := make(map[string]identity, len(ids)), map[string]bool{}
	for _, id := range ids {
		if who, ok := before[id]; ok {
			kept[id] = who
		} else {
			missing[id] = true
		}
	}
	all, err := kept, error(nil)
	if len(missing) > 0 {
		all, err = askRuntime(ctx, r, missing) // without the lock: it may take long
		maps.Copy(all, kept)
		kept = maps.Clone(all)
		maps.DeleteFunc(kept, func(_ string, who identity) bool { return who.partly })
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known = kept
	return all, err
}

func (b *book) read() map[string]identity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known
}

// askRuntime asks the runtime for the identities of the wanted IDs.
func askRuntime(ctx context.Context, r Runtime, wanted map[string]bool) (map[string]identity, error) {
	sandboxes, containers, err := r.List(ctx)
	found := make(map[string]identity, len(wanted))
	if err != nil {
		return found, err
	}
	image, failed := "", false
	for _, s := range sandboxes {
		if !wanted[s.Id] {
			continue
		}
		if image == "" && !failed { // sandboxes created at about the same time have the same image
			image, err = r.SandboxImage(ctx, s.Id)
			failed = err != nil
		}
		found[s.Id] = identity{
			id:      s.Id,
			sandbox: true,
			name:    s.Labels[podutil.LabelContainerName],
			attempt: s.GetMetadata().GetAttempt(),
			image:   image,
			created: time.Unix(0, s.CreatedAt),
			partly:  failed,
		}
	}
	for _, c := range containers {
		if !wanted[c.Id] {
			continue
		}
		found[c.Id] = identity{
			id:      c.Id,
			name:    c.Labels[podutil.LabelContainerName],
			attempt: c.GetMetadata().GetAttempt(),
			image:   cmp.Or(c.GetImage().GetUserSpecifiedImage(), c.GetImage().GetImage()),
			created: time.Unix(0, c.CreatedAt),
		}
	}
	return found, nil
}
