package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
	"github.com/nodelet/nodelet/kube/client"
)

// connectionFailures is the number of failures in a row after which the lease replaces its connection.
const connectionFailures = 2

// lease renews kube-node-lease/NAME, the heartbeat that the control plane watches, after each quarter of its duration
// (10 s of 40 s).
type lease struct {
	name     string
	duration time.Duration
	beat     *client.Client
	renew    func() error        // replaces the connection
	node     func() *corev1.Node // returns the newest Node object, the lease's owner; nil while there is none
	deleted  func() bool         // whether that object has been deleted
	appeared <-chan struct{}     // closed when there is a Node object
	setBack  func()              // called after a renewal with an earlier time than the one before
	log      *slog.Logger
	sent     acceptance // of leases; only run writes it

	held   *coordinationv1.Lease // the last version that was read; only run uses it
	failed int                   // failed attempts in a row; only run uses it
}

// errNoNode means that the lease cannot have an owner yet. Without an owner the lease would stay when the node is
// deleted.
var errNoNode = errors.New("there is no Node object yet")

// run renews the lease until ctx ends.
func (l *lease) run(ctx context.Context) {
	for {
		err := l.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errNoNode) {
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

// pause returns the time until the next attempt: a quarter of the duration. After a failure it is half a second, then
// twice as long each time, up to a sixteenth of the duration.
func (l *lease) pause(err error) time.Duration {
	if err == nil {
		return periodic.Until(l.interval())
	}
	return backoff.Doubled(500*time.Millisecond, l.duration/16, l.failed)
}

// note counts failures, and replaces the connection if it may be the cause.
func (l *lease) note(err error) {
	l.sent.note(time.Now(), err, nil)
	switch {
	case err == nil && l.failed > 0:
		l.log.Info("node lease is renewed again", "failures", l.failed)
		l.failed = 0
	case err != nil:
		l.failed++
	}
	if l.failed == 1 {
		l.log.Warn("cannot renew the node lease, trying again", "err", err, "retryIn", l.pause(err))
	}
	if l.failed > 0 && l.failed%connectionFailures == 0 && mayBeConnection(err) {
		level := slog.LevelDebug // in a long outage it is replaced again and again
		if l.failed == connectionFailures {
			level = slog.LevelInfo
		}
		l.log.Log(context.Background(), level, "replacing the connection for heartbeats", "failures", l.failed)
		if err := l.renew(); err != nil {
			l.log.Warn("cannot replace the connection for heartbeats", "err", err)
		}
	}
}

// mayBeConnection reports whether a new connection could help. It cannot if the server answered, unless the server no
// longer accepts the certificate with which the connection was opened.
func mayBeConnection(err error) bool {
	var answered apierrors.APIStatus
	return !errors.As(err, &answered) || apierrors.IsUnauthorized(err)
}

// attempt renews the lease once, or creates it if there is none.
func (l *lease) attempt(ctx context.Context) error {
	if l.held != nil {
		err := l.update(ctx)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		} // another client wrote or deleted it: read it again
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
	err := l.request(l.beat.Coordination.Get()).Name(l.name).Do(ctx).Into(got)
	if err != nil {
		return nil, fmt.Errorf("get lease: %w", client.Answer(err))
	}
	return got, nil
}

func (l *lease) create(ctx context.Context) error {
	switch {
	case l.node() == nil:
		return errNoNode
	case l.deleted():
		return nil // its owner is gone, so it would be deleted at once
	}
	fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name, Namespace: corev1.NamespaceNodeLease}}
	return l.write(ctx, "create", l.beat.Coordination.Post(), fresh)
}

func (l *lease) update(ctx context.Context) error {
	return l.write(ctx, "update", l.beat.Coordination.Put().Name(l.name), l.held.DeepCopy())
}

// write sends a lease with the fields that this agent owns.
func (l *lease) write(ctx context.Context, verb string, r *rest.Request, next *coordinationv1.Lease) error {
	last := next.Spec.RenewTime
	l.fill(next)
	got := &coordinationv1.Lease{}
	if err := l.request(r).Body(next).Do(ctx).Into(got); err != nil {
		return fmt.Errorf("%s lease: %w", verb, client.Answer(err))
	}
	l.held = got
	if next.Spec.RenewTime.Before(last) {
		l.setBack()
	}
	return nil
}

// request makes r a request for leases of nodes. It may take as long as the interval, as with the kubelet, because the
// server may be slow, for instance if a webhook does not answer. After two requests without an answer there is still
// time for a third one, over a new connection.
func (l *lease) request(r *rest.Request) *rest.Request {
	return r.Namespace(corev1.NamespaceNodeLease).Resource("leases").Timeout(l.interval())
}

// fill sets the fields of the lease that this agent owns.
func (l *lease) fill(to *coordinationv1.Lease) {
	seconds, now := int32(l.duration/time.Second), metav1.NewMicroTime(time.Now())
	to.Spec.HolderIdentity = &l.name
	to.Spec.LeaseDurationSeconds, to.Spec.RenewTime = &seconds, &now
	if n := l.node(); n != nil && n.UID != "" && len(to.OwnerReferences) == 0 {
		to.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
	}
}
