package images

import (
	"context"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri/images/records"
)

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
	if p.cfg.Records == nil {
		return
	}
	ids := make([]string, 0, len(all))
	for _, i := range all {
		ids = append(ids, i.Id)
	}
	p.cfg.Records.Prune(ids, requested)
}

// learn records that the job's own credential may use an image that a pull with the same login has brought.
func (p *Puller) learn(ctx context.Context, j job, r Result) {
	if p.cfg.Records == nil {
		return
	}
	if err := p.cfg.Records.Add(ctx, j.image, r.ID, j.access(r)); err != nil {
		p.log.Warn("cannot record who pulled an image, its pods have to prove again that they may use it", "image", j.image,
			"err", err)
	}
}

// resolve records the images whose pull has ended without a record, so that they do not count as preloaded under any
// name.
func (p *Puller) resolve(ctx context.Context) {
	p.mu.Lock()
	all := slices.Clone(p.unresolved)
	p.mu.Unlock()
	for _, image := range all {
		if n, err := parseName(image); err == nil {
			found, err := p.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: n.pull})
			if err != nil {
				p.log.Warn("cannot look for an image whose pull was interrupted, trying again", "image", image, "err", err)
				continue
			}
			if found != nil {
				p.cfg.Records.Resolve(ctx, image, found.Id)
			}
		}
		p.mu.Lock()
		p.unresolved = slices.DeleteFunc(p.unresolved, func(i string) bool { return i == image })
		p.mu.Unlock()
	}
}
