package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// churn is a number of slots, each of which makes one pod after the other, awaits what is to come of it, and deletes
// it.
type churn struct {
	soak  *soak
	slots sync.WaitGroup
	made  atomic.Int64
	ctx   context.Context
	end   context.CancelFunc

	mu      sync.Mutex
	changed *sync.Cond
	paused  bool
	busy    int
}

// startChurn starts the slots, paused.
func startChurn(s *soak, slots int) *churn {
	c := &churn{soak: s, paused: true}
	c.changed = sync.NewCond(&c.mu)
	c.ctx, c.end = context.WithCancel(context.Background())
	for i := range slots {
		r := rand.New(rand.NewPCG(s.opts.seed, uint64(i)+1))
		c.slots.Go(func() { c.run(i, r) })
	}
	return c
}

func (c *churn) stop() {
	c.end()
	c.resume()
	c.slots.Wait()
}

func (c *churn) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = false
	c.changed.Broadcast()
}

// pause lets no slot make another pod, and waits until all that were made have gone. It returns "" or what is still
// there.
func (c *churn) pause(ctx context.Context) string {
	c.mu.Lock()
	c.paused = true
	c.mu.Unlock()
	return within(ctx, settleLimit, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.busy > 0 {
			return fmt.Sprintf("%d slots still have a pod", c.busy)
		}
		return ""
	})
}

// total returns how many pods were created.
func (c *churn) total() int64 { return c.made.Load() }

func (c *churn) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.paused && c.ctx.Err() == nil {
		c.changed.Wait()
	}
	c.busy++
	return c.ctx.Err() == nil
}

func (c *churn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
}

func (c *churn) run(slot int, r *rand.Rand) {
	for n := 0; c.enter(); n++ {
		c.one(fmt.Sprintf("churn-%d-%d", slot, n), r)
		c.made.Add(1)
		c.leave()
	}
	c.leave()
}

// one is the whole way of a pod. What goes wrong is a violation; requests of the test's own are repeated until they
// get through.
func (c *churn) one(name string, r *rand.Rand) {
	kind := kinds[r.IntN(len(kinds))]
	early, grace := r.IntN(3) == 0, int64(r.IntN(3))
	delay := time.Duration(r.IntN(3000)) * time.Millisecond
	restores := c.soak.restores.Load()
	var made *corev1.Pod
	c.insist(func(ctx context.Context) (err error) {
		made, err = c.soak.create(ctx, kind.pod(c.soak, name))
		return err
	})
	if c.ctx.Err() != nil {
		return
	}
	var last *corev1.Pod
	if early {
		c.soak.wait(c.ctx, delay)
	} else {
		reached, problem := c.reaches(name, kind.expect, restores)
		if problem != "" {
			c.soak.report.violate("pod %s (%s) did not become %s: %s", name, kind.name, kind.expect, problem)
		}
		last = reached
	}
	last = cmp.Or(c.delete(name, grace), last) // the API server removes one that has ended at once
	if c.soak.restores.Load() != restores {    // what the pod had done may have been forgotten
		return
	}
	c.soak.checkTrace(made.UID, kind, last)
}

// insist repeats a request until it succeeds or the churn ends: the test's own connection shares the API server's
// trouble.
func (c *churn) insist(do func(context.Context) error) {
	for c.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
		err := do(ctx)
		cancel()
		if err == nil {
			return
		}
		c.soak.wait(c.ctx, 300*time.Millisecond)
	}
}

// refused reports whether a fault of this round is the reason why the pod was refused.
func (c *churn) refused(p *corev1.Pod) bool {
	r := c.soak.report
	broken := slices.ContainsFunc([]string{"root-read-only", "root-eio", "disk-full", "inodes-full"}, r.injected)
	return r.injected("device-killed") && refusedForDevice(p) || broken && refusedForDisk(p)
}

// reaches waits until the pod is as it should become, and returns what it saw last of it. A fault lasts much shorter
// than the limit. A pod that is lost because etcd was restored needs not become anything.
func (c *churn) reaches(name string, want expectation, restores int64) (last *corev1.Pod, problem string) {
	seen := "it was never read"
	problem = within(c.ctx, settleLimit, func() string {
		p, err := c.soak.get(c.ctx, name)
		if err == nil {
			last = p
		}
		if err == nil && (want.holds(p) || c.refused(p)) {
			return ""
		}
		if err == nil && c.soak.report.injected("runtime-killed") && exitCodeLost(p) {
			c.soak.report.forgot()
			return ""
		}
		if apierrors.IsNotFound(err) && c.soak.restores.Load() != restores {
			return ""
		}
		if err != nil {
			seen = err.Error()
		} else {
			seen = describe(p)
		}
		return seen
	})
	if c.ctx.Err() != nil {
		return last, ""
	}
	return last, problem
}

// delete deletes the pod and waits until it is gone. It returns the last that was seen of it. If etcd is restored from
// a backup without the deletion, it deletes the pod again.
func (c *churn) delete(name string, grace int64) (last *corev1.Pod) {
	restores := c.soak.restores.Load()
	c.requestDeletion(name, grace)
	problem := within(c.ctx, settleLimit, func() string {
		p, err := c.soak.get(c.ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return ""
		case err != nil:
			return err.Error()
		}
		last = p
		if now := c.soak.restores.Load(); p.DeletionTimestamp == nil && now != restores {
			restores = now
			c.requestDeletion(name, grace)
		}
		return describe(p)
	})
	if problem != "" && c.ctx.Err() == nil {
		c.soak.report.violate("pod %s was deleted and is still there: %s", name, problem)
	}
	return last
}

func (c *churn) requestDeletion(name string, grace int64) {
	c.insist(func(ctx context.Context) error {
		err := c.soak.api.Core.Delete().Namespace(namespace).Resource("pods").Name(name).
			Body(&metav1.DeleteOptions{GracePeriodSeconds: &grace}).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (s *soak) create(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	made := &corev1.Pod{}
	err := s.api.Core.Post().Namespace(namespace).Resource("pods").Body(p).Do(ctx).Into(made)
	if apierrors.IsAlreadyExists(err) { // an answer to an earlier request was lost
		return s.get(ctx, p.Name)
	}
	return made, err
}

func (s *soak) get(ctx context.Context, name string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p := &corev1.Pod{}
	return p, s.api.Core.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(p)
}

// describe says in a line how a pod is.
func describe(p *corev1.Pod) string {
	text := fmt.Sprintf("phase %s", p.Status.Phase)
	if p.Status.Reason != "" {
		text += fmt.Sprintf(" (%s: %s)", p.Status.Reason, p.Status.Message)
	}
	if p.DeletionTimestamp != nil {
		text += ", deleted"
	}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		text += fmt.Sprintf(", %s restarts=%d", c.Name, c.RestartCount)
		switch {
		case c.State.Waiting != nil:
			text += " waiting " + c.State.Waiting.Reason + " " + c.State.Waiting.Message
		case c.State.Running != nil:
			text += fmt.Sprintf(" running ready=%v", c.Ready)
		case c.State.Terminated != nil:
			end := c.State.Terminated
			text += fmt.Sprintf(" terminated %s exit=%d %s", end.Reason, end.ExitCode, end.Message)
		}
	}
	return text
}
