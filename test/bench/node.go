package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nodelet/nodelet/kube/watch"
)

// nodeLimit is how long a node may take until it is Ready before the run fails.
const nodeLimit = 2 * time.Minute

// nodeWatch reports when the Node object is first Ready. It is a watch.Sink, so that a watch that ends is taken up
// again.
type nodeWatch struct {
	b     *bench
	stop  context.CancelFunc
	ready chan time.Time

	begin  sync.Once
	synced chan struct{}
}

// followNode returns when the watch has begun. The caller calls stop.
func (b *bench) followNode(ctx context.Context) (*nodeWatch, error) {
	ctx, stop := context.WithCancel(ctx)
	n := &nodeWatch{b: b, stop: stop, ready: make(chan time.Time, 1), synced: make(chan struct{})}
	go watch.Target{
		Client:        b.api.Core,
		Resource:      "nodes",
		FieldSelector: fields.OneTermEqualSelector("metadata.name", b.node.Name).String(),
	}.Follow(ctx, n)
	select {
	case <-n.synced:
		return n, nil
	case <-ctx.Done():
		stop()
		return nil, ctx.Err()
	}
}

// Replace receives the node, if it exists.
func (n *nodeWatch) Replace(objs []metav1.Object) {
	for _, o := range objs {
		n.Set(o)
	}
	n.begin.Do(func() { close(n.synced) })
}

// Set receives the node that was added or changed.
func (n *nodeWatch) Set(o metav1.Object) {
	for _, c := range o.(*corev1.Node).Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			once(n.ready, time.Now())
		}
	}
}

// Delete ignores that the node was deleted.
func (n *nodeWatch) Delete(metav1.Object) {}

// Trouble ignores an error of the watch, because the watch is retried.
func (n *nodeWatch) Trouble(error) {}

// wait returns when the node was first Ready. It fails if the agent exits before that.
func (n *nodeWatch) wait(ctx context.Context) (time.Time, error) {
	agent, limit := time.NewTicker(time.Second), time.After(nodeLimit)
	defer agent.Stop()
	for {
		select {
		case at := <-n.ready:
			return at, nil
		case <-agent.C:
			if n.b.node.AgentPID() == 0 {
				return time.Time{}, fmt.Errorf("the agent has exited: see %s", n.b.node.AgentLog())
			}
		case <-limit:
			return time.Time{}, fmt.Errorf("the node is not Ready after %s: see %s", nodeLimit, n.b.node.AgentLog())
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}
