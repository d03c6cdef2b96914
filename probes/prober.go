// Package probes asks containers how they are, and runs their lifecycle hooks.
//
// It owns the schedule of all startup, liveness and readiness probes of the node, the runs of successes and failures
// that turn attempts into verdicts, and the HTTP, TCP, gRPC and exec handlers. It never decides what follows from a
// verdict: the agent says which containers to probe (Set), is told of verdicts that change, and emits the events that
// attempts call for. Nothing is kept on disk. After a crash the agent tells what the API last showed (Target.Known),
// and probing goes on in the rhythm that the container's start gave it.
package probes

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is what a probe is for. Its text is how events begin.
type Kind string

// The kinds of probes. While a container has a startup probe that has not succeeded, its other probes wait.
const (
	Startup   Kind = "Startup"
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
)

// Result is what a probe says of its container, thresholds included.
type Result int8

// The results. A probe begins as the kubelet has it: readiness as failed, liveness as succeeded, startup as unknown.
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
// says that the command was ended by the timeout; any other that it could not be run.
type Exec func(ctx context.Context, containerID string, cmd []string,
	timeout time.Duration) (output []byte, exitCode int32, err error)

// Target is one probe of one running container.
type Target struct {
	ContainerID string
	Container   *corev1.Container // for its name and the names of its ports
	// Namespace and Pod name the container's pod, for Attempt alone.
	Namespace, Pod string
	Kind           Kind
	Probe          *corev1.Probe // with the API's defaults applied
	// Command is the exec probe's command with references to the container's own environment resolved; nil means as
	// the probe has it.
	Command []string
	// PodIP is probed where the handler names no host: the node's own for a pod in the host's network.
	PodIP string
	// StartedAt is when the container started; InitialDelaySeconds counts from here.
	StartedAt time.Time
	// Known is what an earlier life of the agent had found, as the API shows it; it stands until a real verdict. Unknown
	// for a container that is new.
	Known Result
}

// Verdict is what a probe has come to.
type Verdict struct {
	ContainerID string
	Container   string // name
	Kind        Kind
	Result      Result
	// Message is that of the last attempt that counted; empty before one.
	Message string
	// At is when the result became what it is.
	At time.Time
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
	ContainerID string
	Container   string // name
	// Namespace and Pod are the target's.
	Namespace, Pod string
	Kind           Kind
	Outcome        Outcome
	// Reason and Message are for a Warning event about the container, in the kubelet's words; Reason is empty if there is
	// nothing to tell.
	Reason, Message string
	Took            time.Duration
}

// Config says what a Prober needs of others.
type Config struct {
	// Exec runs commands in containers.
	Exec Exec
	// Verdict is told of each result that changes, Attempt of each attempt, always before the verdict it led to. Both are
	// called without locks held, from several goroutines (for one target from one at a time), and must not block. A
	// call may still come just after its target was taken away.
	Verdict func(pod types.UID, v Verdict)
	Attempt func(pod types.UID, a Attempt)
	// Parallel bounds how many attempts are begun at once; 0 means 32. An attempt that takes long stops counting, so that
	// containers that hang don't keep others from being probed.
	Parallel int
}

// Prober runs the probes of all pods. Safe for concurrent use. Nothing runs before Run.
type Prober struct {
	cfg  Config
	wake chan struct{} // capacity 1

	mu    sync.Mutex
	pods  map[types.UID][]*probe
	due   queue
	slots int // free
}

// New returns a Prober without targets.
func New(cfg Config) *Prober {
	if cfg.Parallel <= 0 {
		cfg.Parallel = 32
	}
	if cfg.Verdict == nil {
		cfg.Verdict = func(types.UID, Verdict) {}
	}
	if cfg.Attempt == nil {
		cfg.Attempt = func(types.UID, Attempt) {}
	}
	return &Prober{cfg: cfg, wake: make(chan struct{}, 1), pods: map[types.UID][]*probe{}, slots: cfg.Parallel}
}

// Set replaces what is probed of a pod; nil ends it. A target that was there before (same container ID and kind) goes
// on with its rhythm and its counts, under the new settings. Attempts of those taken away are cut short and forgotten.
func (p *Prober) Set(pod types.UID, targets []Target) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.pods[pod]
	next := make([]*probe, 0, len(targets))
	for _, t := range targets {
		pr := find(old, t.ContainerID, t.Kind)
		if pr == nil {
			pr = newProbe(pod, t, now)
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

// Verdicts returns what all probes of a pod say now.
func (p *Prober) Verdicts(pod types.UID) []Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Verdict
	for _, pr := range p.pods[pod] {
		all = append(all, pr.verdict)
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
