package execute

import (
	"context"
	"runtime"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/internal/limiter"
)

const (
	// sandboxesPerCPU is how many sandboxes are created, and how many stopped, at a time for each CPU. More of them
	// would only slow each other down.
	sandboxesPerCPU = 4
	// callCountFor is how long a call counts. A longer one waits for something else than the CPUs and must not keep
	// other pods from starting.
	callCountFor = 2 * time.Second
	// volumeCountFor is the same for a light volume that goes ahead: on a busy node many of them take longer than one.
	volumeCountFor = 5 * time.Second
	// externalVolumeCountFor is the same for a volume that a claim provides: it is light if its disk is attached, and
	// otherwise soon no longer counted.
	externalVolumeCountFor = 500 * time.Millisecond
	// publishesPerCPU is how many volumes CSI drivers publish at a time for each CPU, and publishCountFor how long one
	// counts: a slow driver must hardly delay the volumes of others.
	publishesPerCPU = 2
	publishCountFor = 100 * time.Millisecond
	// largeAtOnce is how many pods create large containers at a time. Each takes several times its configuration of memory
	// until the runtime has answered.
	largeAtOnce = 4
)

// limiters keep many pods that start or end at once from slowing each other down. All workers share them.
type limiters struct {
	// create and stop are for RunPodSandbox and StopPodSandbox. Volumes go ahead of create: they are light, and
	// containers wait for both. Meanwhile one sandbox for two CPUs is created, so that the CPUs are not idle while the
	// API server is waited for.
	create, stop *limiter.Limiter
	// publish is for volumes of CSI drivers.
	publish *limiter.Limiter
	// large is for CreateContainer of large containers; see doLarge.
	large *limiter.Limiter
	// pods has a lock for each pod that creates a large container.
	pods keylock.Keyed
	// remove is for RemovePodSandbox, for which nothing waits: one at a time, so that it delays the others little.
	remove *limiter.Limiter
}

func newLimiters() *limiters {
	cpus := runtime.NumCPU()
	wide := sandboxesPerCPU * cpus
	return &limiters{
		create:  limiter.New(wide, max(1, cpus/2), callCountFor),
		stop:    limiter.New(wide, wide, callCountFor),
		publish: limiter.New(publishesPerCPU*cpus, publishesPerCPU*cpus, publishCountFor),
		large:   limiter.New(largeAtOnce, largeAtOnce, callCountFor),
		remove:  limiter.New(1, 1, callCountFor),
	}
}

// doLarge makes a call for a large container of a pod. A pod makes one such call at a time, because many at once could
// exhaust the agent's memory. Other pods do not wait for a slow one, as for a volume that does not answer.
func (l *limiters) doLarge(ctx context.Context, pod types.UID, call func() error) error {
	done, err := l.pods.Lock(ctx, string(pod))
	if err != nil {
		return err
	}
	defer done()
	return l.large.Do(ctx, call)
}
