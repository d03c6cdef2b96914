package node

import (
	"errors"
	"fmt"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the last answer of the container runtime about its name, version and status. The node stays Ready for 30 s
// after the last good answer.
type Runtime struct {
	// Name and Version become for example "containerd://2.4.2".
	Name, Version string
	// Ready and Network are the CRI conditions RuntimeReady and NetworkReady.
	Ready, Network RuntimeCondition
	// Handlers are the runtime handlers that a RuntimeClass can name, by name; the default one has an empty name.
	Handlers []corev1.NodeRuntimeHandler
	// Features says what the runtime supports; nil if unknown.
	Features *corev1.NodeFeatures
	// MountOptions is whether the runtime can set options of bind mounts.
	MountOptions bool
}

// runtimeOf converts what the container runtime answers about its version and status.
func runtimeOf(v *runtimeapi.VersionResponse, s *runtimeapi.StatusResponse) Runtime {
	r := Runtime{Name: v.GetRuntimeName(), Version: v.GetRuntimeVersion()}
	for _, c := range s.GetStatus().GetConditions() {
		condition := RuntimeCondition{OK: c.Status, Reason: c.Reason, Message: c.Message}
		switch c.Type {
		case runtimeapi.RuntimeReady:
			r.Ready = condition
		case runtimeapi.NetworkReady:
			r.Network = condition
		}
	}
	for _, h := range s.GetRuntimeHandlers() {
		r.Handlers = append(r.Handlers, corev1.NodeRuntimeHandler{
			Name: h.Name,
			Features: &corev1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: new(h.GetFeatures().GetRecursiveReadOnlyMounts()),
				UserNamespaces:          new(h.GetFeatures().GetUserNamespaces()),
			},
		})
	}
	sort.Slice(r.Handlers, func(i, j int) bool { return r.Handlers[i].Name < r.Handlers[j].Name })
	if f := s.GetFeatures(); f != nil {
		r.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &f.SupplementalGroupsPolicy}
		r.MountOptions = f.MountOptions
	}
	return r
}

// withNetwork returns r with what the agent itself knows of the pod network: problem, or nil if there is none.
func (r Runtime) withNetwork(problem error) Runtime {
	switch {
	case problem == nil:
	case r.Network.OK:
		r.Network = RuntimeCondition{Reason: "NetworkPluginNotReady", Message: problem.Error()}
	default:
		r.Network.Message += "; nodelet sees: " + problem.Error()
	}
	return r
}

// RuntimeCondition is one condition of the CRI status.
type RuntimeCondition struct {
	OK              bool
	Reason, Message string
}

// runtimeTimeout is how long the last good answer of the runtime counts, as with the kubelet.
const runtimeTimeout = 30 * time.Second

// listTimeout is how long the last list of the runtime's pods counts: three minutes, as with the kubelet, and the
// minute that the agent waits between two lists.
const listTimeout = 4 * time.Minute

// health has the facts from which the conditions are computed.
type health struct {
	runtime  Runtime                           // the last good answer; the zero value before the first
	answered time.Time                         // the time of that answer; zero before the first
	listed   time.Time                         // when the runtime last listed its pods, or first answered
	pressure map[corev1.NodeConditionType]bool // of the conditions that are known
	storage  error                             // set until the storage objects of the node exist
	shutdown error                             // set while the node shuts down
}

// problems returns why the node is not Ready, with the kubelet's messages; nil if it is Ready.
func (h health) problems(now time.Time) error {
	var errs []error
	switch {
	case h.answered.IsZero():
		errs = append(errs, errors.New("container runtime status check may not have completed yet"))
	case now.Sub(h.answered) >= runtimeTimeout:
		errs = append(errs, errors.New("container runtime is down"))
	}
	if !h.answered.IsZero() && !h.runtime.Ready.OK {
		errs = append(errs, fmt.Errorf("container runtime not ready: %s", h.runtime.Ready.text("RuntimeReady")))
	}
	if !h.answered.IsZero() && !h.runtime.Network.OK {
		errs = append(errs, fmt.Errorf("container runtime network not ready: %s", h.runtime.Network.text("NetworkReady")))
	}
	if quiet := now.Sub(h.listed); !h.answered.IsZero() && quiet >= listTimeout {
		errs = append(errs, fmt.Errorf("PLEG is not healthy: pleg was last seen active %s ago; threshold is %s",
			quiet.Truncate(time.Minute), listTimeout))
	}
	errs = append(errs, h.storage, h.shutdown) // NewAggregate drops nil
	if all := utilerrors.NewAggregate(errs); all != nil {
		return all
	}
	return nil
}

func (c RuntimeCondition) text(name string) string {
	return fmt.Sprintf("%s=%t reason:%s message:%s", name, c.OK, c.Reason, c.Message)
}

// nodeEvent is an event about a change of the node's status.
type nodeEvent struct{ kind, reason, message string }

// conditionText has the reason and message of one state of a condition, as the kubelet writes them, and the reason of
// the event about a change to that state.
type conditionText struct{ reason, message, event string }

// pressures are the three conditions that eviction sets. They are False without pressure, and stay until it is known.
var pressures = []struct {
	condition corev1.NodeConditionType
	bad, good conditionText
}{
	{
		corev1.NodeMemoryPressure,
		conditionText{
			"KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory",
		},
		conditionText{"KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"},
	},
	{
		corev1.NodeDiskPressure,
		conditionText{"KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"},
		conditionText{"KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"},
	},
	{
		corev1.NodePIDPressure,
		conditionText{"KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"},
		conditionText{"KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"},
	},
}

// conditions returns the four conditions with the kubelet's reasons and messages, Ready last, and the events about what
// has changed since old. keepReady leaves a Ready condition that is True as it is: see Reporter.
func conditions(
	name string, old []corev1.NodeCondition, h health, keepReady bool, now time.Time,
) ([]corev1.NodeCondition, []nodeEvent) {
	var list []corev1.NodeCondition
	var events []nodeEvent
	add := func(t corev1.NodeConditionType, status corev1.ConditionStatus, text conditionText) {
		c := corev1.NodeCondition{
			Type:               t,
			Status:             status,
			Reason:             text.reason,
			Message:            text.message,
			LastHeartbeatTime:  metav1.NewTime(now),
			LastTransitionTime: metav1.NewTime(now),
		}
		before := find(old, t)
		if before != nil && before.Status == status {
			c.LastTransitionTime = before.LastTransitionTime
		} else if before != nil || t != corev1.NodeReady { // the first Ready condition of a new node is not a change
			message := fmt.Sprintf("Node %s status is now: %s", name, text.event)
			events = append(events, nodeEvent{corev1.EventTypeNormal, text.event, message})
		}
		list = append(list, c)
	}
	for _, p := range pressures {
		under, known := h.pressure[p.condition]
		if !known {
			before := find(old, p.condition)
			under = before != nil && before.Status == corev1.ConditionTrue
		}
		if under {
			add(p.condition, corev1.ConditionTrue, p.bad)
		} else {
			add(p.condition, corev1.ConditionFalse, p.good)
		}
	}
	problem := h.problems(now)
	before := find(old, corev1.NodeReady)
	switch {
	case problem == nil:
		text := conditionText{"KubeletReady", "kubelet is posting ready status", "NodeReady"}
		add(corev1.NodeReady, corev1.ConditionTrue, text)
	case keepReady && h.shutdown == nil && before != nil && before.Status == corev1.ConditionTrue:
		add(corev1.NodeReady, corev1.ConditionTrue, conditionText{reason: before.Reason, message: before.Message})
	default:
		add(corev1.NodeReady, corev1.ConditionFalse, conditionText{"KubeletNotReady", problem.Error(), "NodeNotReady"})
	}
	return list, events
}

// owns reports whether this agent writes conditions of type t.
func owns(t corev1.NodeConditionType) bool {
	for _, p := range pressures {
		if p.condition == t {
			return true
		}
	}
	return t == corev1.NodeReady
}

func find(list []corev1.NodeCondition, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}
