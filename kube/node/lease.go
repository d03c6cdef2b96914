package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/internal/backoff"
)

// connectionFailures in a row make the lease throw its connection away.
const connectionFailures = 2

// lease keeps kube-node-lease/NAME fresh: the sign of life that the control plane looks at. It is renewed each
// quarter of its duration (10 s of 40 s).
type lease struct {
	name     string
	duration time.Duration
	beat     *beat
	node     func() *corev1.Node // the newest Node object, the lease's owner; nil while there is none
	appeared <-chan struct{}     // closed when there is one
	log      *slog.Logger

	held   *coordinationv1.Lease // as last seen; only run uses it
	failed int                   // attempts in a row; only run uses it

	mu      sync.Mutex
	renewed time.Time // when it was fresh last; the start before the first time
	lastErr error
}

// errNoNode says that there is nobody yet to own the lease; without an owner it would outlive the node.
var errNoNode = errors.New("there is no Node object yet")

// run renews until ctx ends.
func (l *lease) run(ctx context.Context) {
	for {
		err := l.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errNoNode) {
			l.remember(err)
			select {
			case <-l.appeared:
			case <-ctx.Done():
			}
			continue
		}
		l.note(err)
		if !backoff.Sleep(ctx, l.pause(err)) {
			return
		}
	}
}

func (l *lease) interval() time.Duration { return l.duration / 4 }

// pause is a quarter of the duration, give or take 4 %, so that nodes that started together drift apart. After a
// failure it is short: half a second, then twice as long each time, up to a sixteenth of the duration.
func (l *lease) pause(err error) time.Duration {
	if err == nil {
		return time.Duration(float64(l.interval()) * (0.96 + 0.08*rand.Float64()))
	}
	limit := l.duration / 16
	return min(500*time.Millisecond<<min(l.failed-1, 10), limit)
}

// note counts failures and renews the connection where it may be the reason.
func (l *lease) note(err error) {
	switch {
	case err == nil && l.failed > 0:
		l.log.Info("node lease is renewed again", "failed", l.failed)
		l.failed = 0
	case err != nil:
		l.failed++
	}
	if l.failed == 1 {
		l.log.Warn("renew node lease; will retry", "err", err)
	}
	if l.failed > 0 && l.failed%connectionFailures == 0 && mayBeConnection(err) {
		l.log.Info("open a new connection for heartbeats", "failed", l.failed)
		if renewErr := l.beat.renew(); renewErr != nil {
			err = errors.Join(err, renewErr)
		}
	}
	l.remember(err)
}

// mayBeConnection says whether a new connection could help: not where the server answered, except that it no longer
// takes the certificate which the connection was opened with.
func mayBeConnection(err error) bool {
	var answered apierrors.APIStatus
	return !errors.As(err, &answered) || apierrors.IsUnauthorized(err)
}

func (l *lease) remember(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastErr = err
	if err == nil {
		l.renewed = time.Now()
	}
}

// health says when the lease has run out, and why.
func (l *lease) health(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age := now.Sub(l.renewed); age > l.duration {
		return fmt.Errorf("the node lease was not renewed for %s: %w", age.Round(time.Second), l.lastErr)
	}
	return nil
}

// attempt renews the lease once; half the interval is its time. It creates the lease where there is none.
func (l *lease) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.interval()/2)
	defer cancel()
	if l.held != nil {
		err := l.update(ctx)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		} // else somebody wrote or deleted it: look again
	}
	got, err := l.get(ctx)
	if apierrors.IsNotFound(err) {
		return l.create(ctx)
	}
	if err != nil {
		return err
	}
	l.held = got
	return l.update(ctx)
}

func (l *lease) get(ctx context.Context) (*coordinationv1.Lease, error) {
	got := &coordinationv1.Lease{}
	err := l.beat.api().Coordination.Get().Namespace(corev1.NamespaceNodeLease).Resource("leases").Name(l.name).Do(ctx).Into(got)
	if err != nil {
		return nil, fmt.Errorf("get lease: %w", err)
	}
	return got, nil
}

func (l *lease) create(ctx context.Context) error {
	if l.node() == nil {
		return errNoNode
	}
	fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name, Namespace: corev1.NamespaceNodeLease}}
	l.fill(fresh)
	got := &coordinationv1.Lease{}
	err := l.beat.api().Coordination.Post().Namespace(corev1.NamespaceNodeLease).Resource("leases").Body(fresh).Do(ctx).Into(got)
	if err != nil {
		return fmt.Errorf("create lease: %w", err)
	}
	l.held = got
	return nil
}

func (l *lease) update(ctx context.Context) error {
	next := l.held.DeepCopy()
	l.fill(next)
	got := &coordinationv1.Lease{}
	err := l.beat.api().Coordination.Put().Namespace(corev1.NamespaceNodeLease).Resource("leases").Name(l.name).Body(next).Do(ctx).Into(got)
	if err != nil {
		return fmt.Errorf("update lease: %w", err)
	}
	l.held = got
	return nil
}

// fill sets what this agent says in the lease.
func (l *lease) fill(to *coordinationv1.Lease) {
	seconds, now := int32(l.duration/time.Second), metav1.NewMicroTime(time.Now())
	to.Spec.HolderIdentity, to.Spec.LeaseDurationSeconds, to.Spec.RenewTime = &l.name, &seconds, &now
	if n := l.node(); n != nil && n.UID != "" && len(to.OwnerReferences) == 0 {
		to.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
	}
}
