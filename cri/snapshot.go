package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Snapshot is the state of one pod in the runtime. It shares statuses with the snapshots before and after it: do not
// change it, except that the labels, annotations and mounts of a container may be dropped where they are read once.
type Snapshot struct {
	UID types.UID
	// Sandboxes and Containers are all instances, the highest attempt first. After containerd was killed while it created
	// a sandbox, it may report this sandbox beside a second one of the same attempt: the ready one comes first then. The
	// creation time of the other is meaningless. The addresses of a sandbox that is not ready are those of the last
	// snapshot; its network may have been removed since. Sandboxes have no labels and annotations here.
	Sandboxes  []*runtimeapi.PodSandboxStatus
	Containers []Container

	// updates is the client's counter of resource updates from before the snapshot was taken.
	updates uint64
}

// Container is one container of a pod.
type Container struct {
	*runtimeapi.ContainerStatus
	// SandboxID is the sandbox that it was created in, which may be gone.
	SandboxID string

	// settled: the exit has been read twice; see sameContainer.
	settled bool
}

// Instance names a sandbox or, with Container, a container. Of a container that a snapshot has, Sandbox may be empty.
type Instance struct{ Sandbox, Container string }

// Snapshot asks the runtime for all sandboxes and containers of a pod, found by the label io.kubernetes.pod.uid. It
// costs two concurrent lists, filtered by the runtime, and one status for each instance that may have changed since
// prev, the pod's last snapshot (nil: none). What disappears between list and status is left out.
func (c *Client) Snapshot(ctx context.Context, uid types.UID, prev *Snapshot) (*Snapshot, error) {
	if uid == "" {
		return nil, errors.New("take snapshot of pod: the pod has no UID")
	}
	if prev == nil {
		prev = &Snapshot{}
	}
	updates := c.updates.Load()
	all, err := list(ctx, c, string(uid), map[string]string{podutil.LabelPodUID: string(uid)})
	if err != nil {
		return nil, err
	}
	return all.read(ctx, c, &Snapshot{UID: uid, updates: updates}, prev)
}

// Update is a Snapshot without the lists: it takes the instances of prev, and those that have changed since, which may
// be new. So the answer comes after one call instead of two, and no call takes longer on a full node. What neither prev
// nor changed names, only the next Snapshot shows.
func (c *Client) Update(ctx context.Context, prev *Snapshot, changed []Instance) (*Snapshot, error) {
	next := &Snapshot{UID: prev.UID, updates: c.updates.Load()}
	var all listing
	for _, known := range prev.Sandboxes {
		all.sandboxes = append(all.sandboxes, &runtimeapi.PodSandbox{Id: known.Id, State: known.State})
	}
	for _, known := range prev.Containers {
		all.containers = append(all.containers,
			&runtimeapi.Container{Id: known.Id, PodSandboxId: known.SandboxID, State: known.State})
	}
	for _, i := range changed {
		if i.Container != "" {
			all.changeContainer(i)
		} else {
			all.changeSandbox(i.Sandbox)
		}
	}
	return all.read(ctx, c, next, prev)
}

// Without is the snapshot after an instance was removed; with a sandbox, the runtime has removed its containers.
func (s *Snapshot) Without(removed Instance) *Snapshot {
	sandboxes, containers := slices.Clone(s.Sandboxes), slices.Clone(s.Containers)
	if removed.Container != "" {
		containers = slices.DeleteFunc(containers, func(c Container) bool { return c.Id == removed.Container })
	} else {
		is := func(p *runtimeapi.PodSandboxStatus) bool { return p.Id == removed.Sandbox }
		sandboxes = slices.DeleteFunc(sandboxes, is)
		containers = slices.DeleteFunc(containers, func(c Container) bool { return c.SandboxID == removed.Sandbox })
	}
	return &Snapshot{UID: s.UID, Sandboxes: sandboxes, Containers: containers, updates: s.updates}
}

// listing is what the runtime has of a pod.
type listing struct {
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
}

// stateChanged is the state of an instance whose status must be read. What has ended keeps its state.
const stateChanged = -1

// changeSandbox marks a sandbox, and the containers that end with it.
func (l *listing) changeSandbox(id string) {
	for _, c := range l.containers {
		if c.PodSandboxId == id {
			changeState(c)
		}
	}
	for _, s := range l.sandboxes {
		if s.Id == id {
			if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
				s.State = stateChanged
			}
			return
		}
	}
	l.sandboxes = append(l.sandboxes, &runtimeapi.PodSandbox{Id: id, State: stateChanged})
}

// changeContainer marks a container.
func (l *listing) changeContainer(i Instance) {
	for _, c := range l.containers {
		if c.Id == i.Container {
			changeState(c)
			return
		}
	}
	l.containers = append(l.containers,
		&runtimeapi.Container{Id: i.Container, PodSandboxId: i.Sandbox, State: stateChanged})
}

func changeState(c *runtimeapi.Container) {
	if c.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		c.State = stateChanged
	}
}

// read completes a snapshot with the statuses of what was listed: from prev, or from the runtime if they may have
// changed.
func (l listing) read(ctx context.Context, c *Client, s, prev *Snapshot) (*Snapshot, error) {
	g, ctx := errgroup.WithContext(ctx)
	s.Sandboxes = make([]*runtimeapi.PodSandboxStatus, len(l.sandboxes))
	for i, listed := range l.sandboxes {
		if s.Sandboxes[i] = prev.sameSandbox(listed); s.Sandboxes[i] == nil {
			g.Go(func() (err error) {
				s.Sandboxes[i], err = orGone(c.sandboxStatus(ctx, listed.Id))
				return err
			})
		}
	}
	s.Containers = make([]Container, len(l.containers))
	for i, listed := range l.containers {
		s.Containers[i] = prev.sameContainer(listed, s.updates)
		if s.Containers[i].ContainerStatus == nil {
			g.Go(func() (err error) {
				s.Containers[i].ContainerStatus, err = orGone(c.containerStatus(ctx, listed.Id))
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("take snapshot of pod %s: %w", s.UID, err)
	}
	s.tidy()
	return s, nil
}

// Matches reports whether the runtime has the same sandboxes and containers in the same states as in s, judging by the
// fingerprint that Relist gives the pod. What else a container status shows, resources or a mount for example, is not
// compared: the worker that changes it observes the pod again by itself. Matches is false while an exit may still get
// another reason.
func (s *Snapshot) Matches(fingerprint uint64) bool {
	for _, sandbox := range s.Sandboxes {
		fingerprint -= sandboxPrint(sandbox.Id, sandbox.State)
	}
	for _, c := range s.Containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_EXITED && !c.settled {
			return false
		}
		fingerprint -= containerPrint(c.Id, c.State)
	}
	return fingerprint == 0
}

// List lists all sandboxes and containers of the node, by two concurrent calls.
func (c *Client) List(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	all, err := list(ctx, c, "", nil)
	return all.sandboxes, all.containers, err
}

// list lists sandboxes and containers concurrently.
func list(ctx context.Context, c *Client, object string, labels map[string]string) (all listing, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		all.sandboxes, err = c.listSandboxes(ctx, object, labels)
		return err
	})
	all.containers, err = c.listContainers(ctx, object, labels)
	if errGroup := g.Wait(); errGroup != nil {
		return listing{}, errGroup
	}
	return all, err
}

// sameSandbox returns the known status of a listed sandbox, nil if it may have changed. A sandbox's addresses are there
// before it is first listed as ready and stay while it is, and those of one that is not ready are of no use.
func (s *Snapshot) sameSandbox(listed *runtimeapi.PodSandbox) *runtimeapi.PodSandboxStatus {
	for _, known := range s.Sandboxes {
		if known.Id != listed.Id || known.State != listed.State {
			continue
		}
		hostNetwork := known.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
		if listed.State == runtimeapi.PodSandboxState_SANDBOX_NOTREADY || known.GetNetwork().GetIp() != "" || hostNetwork {
			return known
		}
	}
	return nil
}

// sameContainer returns a listed container with its known status, without a status if it may have changed. While its
// state stays, a container's status changes in two ways only: its resources by UpdateContainerResources, and the reason
// of its exit, which containerd may correct to OOMKilled a moment after the exit. So an exit counts as final when it
// was read twice.
func (s *Snapshot) sameContainer(listed *runtimeapi.Container, updates uint64) Container {
	fresh := Container{SandboxID: listed.PodSandboxId}
	for _, known := range s.Containers {
		if known.Id != listed.Id || known.State != listed.State {
			continue
		}
		switch listed.State {
		case runtimeapi.ContainerState_CONTAINER_EXITED:
			if known.settled {
				return known
			}
			fresh.settled = true
		case runtimeapi.ContainerState_CONTAINER_CREATED, runtimeapi.ContainerState_CONTAINER_RUNNING:
			if s.updates == updates {
				return known
			}
		}
	}
	return fresh
}

// orGone returns no status and no error for an instance that is not found.
func orGone[T any](status *T, err error) (*T, error) {
	if IsNotFound(err) {
		return nil, nil
	}
	return status, err
}

// tidy removes what has disappeared and sorts the rest.
func (s *Snapshot) tidy() {
	s.Sandboxes = slices.DeleteFunc(s.Sandboxes, func(p *runtimeapi.PodSandboxStatus) bool { return p == nil })
	slices.SortFunc(s.Sandboxes, func(a, b *runtimeapi.PodSandboxStatus) int {
		return cmp.Or(cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt()),
			cmp.Compare(a.State, b.State), // ready is 0
			cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
	s.Containers = slices.DeleteFunc(s.Containers, func(c Container) bool { return c.ContainerStatus == nil })
	slices.SortFunc(s.Containers, func(a, b Container) int {
		return cmp.Or(cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt()),
			cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
}
