package images

import (
	"context"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri/images/records"
	"github.com/nodelet/nodelet/internal/keylock"
)

// Records say who may use the images on the node: *records.Store.
type Records interface {
	// Begin is called before a pull of an image, and Succeeded, Failed or Unknown after it. before is the ID that the
	// image had before the pull, if it is known.
	Begin(ctx context.Context, image string) error
	Succeeded(ctx context.Context, image, id string, c records.Credentials)
	Failed(image string)
	Unknown(image, before string)
	// Unresolved returns the images that an interrupted pull may have brought, and Resolve ends such a pull when it is
	// known what it has brought: at once, or after the time records.Settle.
	Unresolved() []string
	Resolve(ctx context.Context, image, id string)
	// Recorded reports whether there is a record of an image.
	Recorded(id string) bool
	// Add says that these credentials may use an image, too.
	Add(ctx context.Context, image, id string, c records.Credentials) error
	// Allowed reports whether a pod with these credentials may use an image that is present.
	Allowed(ctx context.Context, image, id string, of func() records.Credentials) (bool, error)
	// Enforced reports whether an image may be refused to a pod.
	Enforced() bool
	// Prune forgets images that are not among ids, which were listed at a time.
	Prune(ids []string, listed time.Time)
}

// everyPod are the Records of a node on which every pod may use every image.
type everyPod struct{}

func (everyPod) Begin(context.Context, string) error                            { return nil }
func (everyPod) Succeeded(context.Context, string, string, records.Credentials) {}
func (everyPod) Failed(string)                                                  {}
func (everyPod) Unknown(string, string)                                         {}
func (everyPod) Unresolved() []string                                           { return nil }
func (everyPod) Resolve(context.Context, string, string)                        {}
func (everyPod) Add(context.Context, string, string, records.Credentials) error { return nil }
func (everyPod) Recorded(string) bool                                           { return true }
func (everyPod) Enforced() bool                                                 { return false }
func (everyPod) Prune([]string, time.Time)                                      {}
func (everyPod) Allowed(context.Context, string, string, func() records.Credentials) (bool, error) {
	return true, nil
}

// access returns who may use an image because of a credential with which it was pulled.
func (c credential) access() records.Credentials {
	s := c.source
	switch {
	case s == Source{}:
		return records.Credentials{EveryPod: true}
	case s.ServiceAccount:
		return records.Credentials{ServiceAccounts: []records.ServiceAccount{
			{UID: string(s.UID), Namespace: s.Namespace, Name: s.Name},
		}}
	}
	return records.Credentials{Secrets: []records.Secret{{
		UID:            string(s.UID),
		Namespace:      s.Namespace,
		Name:           s.Name,
		CredentialHash: records.HashLogin(c.login.Username, c.login.Password, c.login.Email),
	}}}
}

// accessOfAll returns the credentials of a pod itself; those that the whole node has prove nothing about the pod.
func accessOfAll(all []credential) (sum records.Credentials) {
	for _, c := range all {
		one := c.access()
		sum.Secrets = append(sum.Secrets, one.Secrets...)
		sum.ServiceAccounts = append(sum.ServiceAccounts, one.ServiceAccounts...)
	}
	return sum
}

// access returns who may use an image after the job's pull.
func (j job) access(r Result) records.Credentials {
	if r.used < len(j.credentials) {
		return j.credentials[r.used].access()
	}
	return records.Credentials{EveryPod: true}
}

// Listed forgets who pulled images that are not among all, which the runtime listed after the time requested.
func (p *Puller) Listed(all []*runtimeapi.Image, requested time.Time) {
	ids := make([]string, 0, len(all))
	for _, i := range all {
		ids = append(ids, i.Id)
	}
	p.cfg.Records.Prune(ids, requested)
}

// learn records that the job's own credential may use an image that a pull with the same login has brought.
func (p *Puller) learn(ctx context.Context, j job, r Result) {
	if err := p.cfg.Records.Add(ctx, j.image, r.ID, j.access(r)); err != nil {
		p.log.Warn("cannot record who pulled an image, its pods need credentials for it again", "image", j.image,
			"err", err)
	}
}

// looks lets all who need a look at the unresolved pulls share one, if it begins after they ask: an older look says
// nothing about an image that has come since. Looks are numbered from 1, in the order in which they begin.
type looks struct {
	// begun is the newest look.
	begun atomic.Uint64
	turn  keylock.Keyed
	// whole is the newest look that was not cut short. The turn guards it.
	whole uint64
}

func (l *looks) share(ctx context.Context, look func()) {
	asked := l.begun.Load()
	unlock, err := l.turn.Lock(ctx, "")
	if err != nil {
		return
	}
	defer unlock()
	if l.whole > asked {
		return
	}
	own := l.begun.Add(1)
	if look(); ctx.Err() == nil {
		l.whole = own
	}
}

// resolve records images whose pull has ended without a record, so that they do not count as preloaded under any name.
func (p *Puller) resolve(ctx context.Context, images ...string) {
	for _, image := range images {
		id, err := p.idOf(ctx, image)
		if err != nil {
			p.log.Warn("cannot look at an interrupted pull, trying again when an image without a record is used",
				"image", image, "err", err)
			continue
		}
		p.cfg.Records.Resolve(ctx, image, id)
	}
}

// resolveLater resolves pulls that have ended now without a record, when their images can no longer appear. An image
// that comes after that is preloaded.
func (p *Puller) resolveLater(images ...string) {
	time.AfterFunc(records.Settle, func() { p.resolve(context.Background(), images...) })
}

// idOf returns the ID of an image; empty if it is not on the node.
func (p *Puller) idOf(ctx context.Context, image string) (string, error) {
	n, err := parseName(image)
	if err != nil {
		return "", nil // no runtime has an image of that name
	}
	found, err := p.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: n.pull})
	return found.GetId(), err
}
