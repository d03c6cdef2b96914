// Package probes runs the startup, liveness and readiness probes of containers, and their lifecycle hooks.
//
// It owns the schedule of all probes of the node, the counts of consecutive successes and failures that turn attempts
// into results, and the HTTP, TCP, gRPC and exec handlers. It never decides what follows from a result.
//
// The agent calls Set with the containers to probe, receives changed results, and emits the events for attempts.
// Nothing is stored on disk. After a crash the agent passes the last published result (Target.Known), and probing
// continues in the rhythm given by the start of the container.
package probes

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/internal/limiter"
)

// Kind is the kind of a probe. Its text is the first word of events.
type Kind string

// The kinds of probes. While a container has a startup probe that has not succeeded, its other probes wait.
const (
	Startup   Kind = "Startup"
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
)

// Result is the result of a probe with its thresholds applied.
type Result int8

// The results. A liveness probe begins as succeeded, as with the kubelet, the others as unknown.
const (
	Unknown Result = iota
	Success
	Failure
)

func (r Result) String() string {
	return [...]string{"unknown", "success", "failure"}[r]
}

// Exec runs a command in a container and returns its output (standard output, then standard error) and exit code. With
// a timeout of 0 it may take as long as ctx. An error that wraps context.DeadlineExceeded, or carries that gRPC code,
// means that the command did not end in time, any other that it could not be run or that nothing is known of it.
type Exec func(ctx context.Context, containerID string, cmd []string,
	timeout time.Duration) (output []byte, exitCode int32, err error)

// Target is one probe of one running container.
type Target struct {
	ContainerID string
	Container   *corev1.Container // for its name and the names of its ports
	// Namespace and Pod name the container's pod.
	Namespace, Pod string
	Kind           Kind
	Probe          *corev1.Probe // with the API's defaults applied
	// Command returns the exec probe's command with references to the container's own environment resolved. It is called
	// for each attempt, because the result may be large. nil means as the probe has it.
	Command func() []string
	// PodIP is probed if the handler has no host. It is the node's address for a pod in the host network.
	PodIP string
	// StartedAt is when the container started; InitialDelaySeconds counts from here.
	StartedAt time.Time
	// Known is the result of an earlier process, as the API shows it. It is valid until the first result of this process.
	// Unknown for a new container.
	Known Result
}

// Status is the newest result of a probe.
type Status struct {
	ContainerID string
	Kind        Kind
	Result      Result
	// Message is that of the last attempt, also of one that counts for nothing because it could not be run; empty before
	// the first.
	Message string
}

// Outcome is how one attempt ended.
type Outcome string

// The outcomes. Errored attempts (the handler could not be run at all) count for nothing; warnings count as successes.
const (
	Succeeded Outcome = "successful"
	Warned    Outcome = "warning"
	Failed    Outcome = "failed"
	Errored   Outcome = "unknown"
)

// Attempt is one run of a probe.
type Attempt struct {
	Container string // name
	// Namespace and Pod are the target's.
	Namespace, Pod string
	Kind           Kind
	Outcome        Outcome
	// Reason and Message are for a Warning event about the container, in the kubelet's words; Reason is empty if there is
	// no event.
	Reason, Message string
	Took            time.Duration
}

// Config configures a Prober.
type Config struct {
	// Exec runs commands in containers.
	Exec Exec
	// Changed receives each result that changes, Attempt each attempt, always before the result that it caused. Both are
	// called without locks held, from several goroutines (for one target from one at a time), and must not block. A
	// call may still come just after its target was removed.
	Changed func(pod types.UID, v Status)
	Attempt func(pod types.UID, a Attempt)
	// Parallel bounds the number of concurrent commands, and that of concurrent requests; 0 means 32. A long attempt
	// stops counting, so that containers that hang do not delay the probes of others.
	Parallel int
}

// Prober runs the probes of all pods. Safe for concurrent use. Nothing runs before Run.
type Prober struct {
	cfg  Config
	wake latest.Signal
	// large is held for a pod while one of its large commands runs.
	large keylock.Keyed

	// commands are the attempts of exec probes, requests all others.
	commands, requests *limiter.Limiter

	mu   sync.Mutex
	pods map[types.UID][]*probe
	due  queue
}

// New returns a Prober without targets.
func New(cfg Config) *Prober {
	if cfg.Parallel <= 0 {
		cfg.Parallel = 32
	}
	return &Prober{
		cfg:      cfg,
		wake:     latest.NewSignal(),
		commands: limiter.New(cfg.Parallel, cfg.Parallel, commandTime),
		requests: limiter.New(cfg.Parallel, cfg.Parallel, requestTime),
		pods:     map[types.UID][]*probe{},
	}
}

// Set replaces what is probed of a pod; nil ends it. A target that was there before (same container ID and kind)
// keeps its rhythm and its counts, with the new settings. A startup probe without a result ends if it is known now that
// the container has started. Attempts of removed targets are cancelled and do not count.
func (p *Prober) Set(pod types.UID, targets []Target) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.pods[pod]
	next := make([]*probe, 0, len(targets))
	for _, t := range targets {
		pr := find(old, t.ContainerID, t.Kind)
		if pr == nil {
			pr = newProbe(pod, t)
		} else if t.Kind == Startup && t.Known == Success && !pr.count.held {
			p.end(pr)
			pr = newProbe(pod, t)
		}
		pr.target = t
		next = append(next, pr)
	}
	for _, pr := range old {
		if find(next, pr.target.ContainerID, pr.target.Kind) == nil {
			p.end(pr)
		}
	}
	if len(next) == 0 {
		delete(p.pods, pod)
		return
	}
	p.pods[pod] = next
	for _, pr := range next {
		p.begin(pr, now)
	}
}

// Statuses returns the newest results of all probes of a pod.
func (p *Prober) Statuses(pod types.UID) []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Status
	for _, pr := range p.pods[pod] {
		all = append(all, pr.status)
	}
	return all
}

func find(list []*probe, container string, k Kind) *probe {
	for _, pr := range list {
		if pr.target.ContainerID == container && pr.target.Kind == k {
			return pr
		}
	}
	return nil
}
