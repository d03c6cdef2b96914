package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// flight is a pull under way, shared by all requests with the same key.
type flight struct {
	// waiters is guarded by the puller's mutex.
	waiters int
	cancel  context.CancelFunc
	// done is closed when result and err are set.
	done   chan struct{}
	result Result
	err    error
}

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
	f := p.join(ctx, j)
	select {
	case <-f.done:
		if f.err != nil {
			return Result{}, j.explain(f.err)
		}
		p.learn(ctx, j, f.result)
		return f.result, nil
	case <-ctx.Done():
		p.leave(j.key(), f)
		return Result{}, fmt.Errorf("pull image %q: %w", j.image, context.Cause(ctx))
	}
}

// join finds or starts the flight for a job.
func (p *Puller) join(ctx context.Context, j job) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := j.key()
	f := p.flights[key]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
		p.flights[key] = f
		go p.fly(ctx, key, f, j)
	}
	f.waiters++
	return f
}

// leave takes one waiter off a flight; the last one cancels it.
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

// fly waits for a free place among the pulls and until the next may start, and pulls.
func (p *Puller) fly(ctx context.Context, key string, f *flight, j job) {
	defer f.cancel()
	if p.tokens != nil {
		select {
		case p.tokens <- struct{}{}:
			defer func() { <-p.tokens }()
		case <-ctx.Done():
			return // no request waits any more
		}
	}
	if p.rate != nil && p.rate.Wait(ctx) != nil {
		return
	}
	f.result, f.err = p.pullRecorded(ctx, j)
	p.mu.Lock()
	p.forget(key, f)
	p.mu.Unlock()
	close(f.done)
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
		p.resolveLater()
	}
	return got, err
}

// refused reports whether the runtime has said that it could not pull. After any other error the image may be there.
func refused(err error) bool {
	var r *Reason
	return errors.As(err, &r) && r.Reason != podutil.ReasonImageInspect && cri.Answered(err)
}
