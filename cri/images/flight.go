package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// key is the same for jobs that may share a pull: by the namespace and the annotations, runtimes check signatures and
// choose the snapshotter.
func (j job) key() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q\n", j.sandbox.GetMetadata().GetNamespace(), j.sandbox.GetAnnotations()) // fmt sorts maps
	for _, c := range j.credentials {
		fmt.Fprintf(h, "%q %q\n", c.login.Username, c.login.Password)
	}
	return fmt.Sprintf("%s\n%x", j.name.pull, h.Sum(nil))
}

// share pulls an image, or waits for a pull with the same key. A pull is cancelled when the last request that waits for
// it has ended.
func (p *Puller) share(ctx context.Context, j job) (Result, error) {
	got, err := p.flights.Do(ctx, j.key(), func(ctx context.Context) (Result, error) { return p.pullInTurn(ctx, j) })
	switch {
	case err != nil && ctx.Err() != nil:
		return Result{}, fmt.Errorf("pull image %q: %w", j.image, context.Cause(ctx))
	case err != nil:
		return Result{}, j.explain(err)
	}
	p.learn(ctx, j, got)
	return got, nil
}

// pullInTurn waits for a free place among the pulls and until the next may start, and pulls.
func (p *Puller) pullInTurn(ctx context.Context, j job) (Result, error) {
	if p.tokens != nil {
		select {
		case p.tokens <- struct{}{}:
			defer func() { <-p.tokens }()
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}
	if p.rate != nil {
		if err := p.rate.Wait(ctx); err != nil {
			return Result{}, err
		}
	}
	return p.pullRecorded(ctx, j)
}

// pullRecorded pulls an image with a record of its beginning and of its end.
func (p *Puller) pullRecorded(ctx context.Context, j job) (Result, error) {
	records := p.cfg.Records
	before := ""
	if records.Enforced() {
		before, _ = p.idOf(ctx, j.image) // without it, an image that the pull may have brought counts as brought
	}
	if err := records.Begin(ctx, j.image); err != nil {
		return Result{}, recordFailed(j.image, err)
	}
	got, err := p.pull(ctx, j)
	switch {
	case err == nil:
		records.Succeeded(context.WithoutCancel(ctx), j.image, got.ID, j.access(got))
	case refused(err):
		records.Failed(j.image)
	default:
		records.Unknown(j.image, before)
		p.resolveLater(j.image)
	}
	return got, err
}

// refused reports whether the runtime has said that it could not pull. After any other error the image may be there.
func refused(err error) bool {
	r, ok := errors.AsType[*Reason](err)
	return ok && r.Reason != podutil.ReasonImageInspect && cri.Answered(err)
}
