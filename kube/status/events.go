package status

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/kube/client"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	component     = "kubelet"        // dashboards and alerts select events by it
	eventQueue    = 1000             // so many events may wait, as in the kubelet
	eventRetryMax = 10 * time.Second // as in the kubelet
	// eventHold is how long an event waits for others. An event is not urgent, and its pod is often just starting.
	eventHold = time.Second
	// eventBatch is how many events are held at most; then they are written without more delay.
	eventBatch = 100
	// eventLate is the age from which events of several objects are written at a time: the API server is slow or far away.
	eventLate = 10 * time.Second
	// eventWriters is how many objects that is at most.
	eventWriters = 4
	// eventSlow is how long an event is tried whose requests reach the API server and take too long, which may be because
	// of webhooks of its namespace: about as long as with the kubelet.
	eventSlow = 2 * time.Minute
	// eventLast bounds the writing of the held events when the agent ends.
	eventLast     = 2 * time.Second
	eventLifetime = time.Hour // as in the API server; an older event is of no use
	// eventMessage is how much of a message is recorded, in bytes. That of a probe may have 10 KiB, as in the kubelet.
	eventMessage = 16 << 10
)

// Ref names the object an event is about.
type Ref struct {
	Kind      string // Pod, PersistentVolumeClaim or Node
	Namespace string // empty for a Node
	Name      string
	UID       types.UID // of a static pod: the UID that the node gave it
	FieldPath string    // which part of the object, like spec.containers{app}; may be empty
}

// RecorderConfig says how a Recorder reaches the API server.
type RecorderConfig struct {
	// Client speaks to /api/v1. Give it a rate limiter of its own (eventRecordQPS, eventBurst), so that events never delay
	// statuses. Nil: there is no API server, and events are only logged.
	Client rest.Interface
	// Node is the node's name, the source host of each event.
	Node string
	// NodeUID returns the UID of the Node object, empty while it is not known.
	NodeUID func() types.UID
	// Log receives each event: at level info in standalone mode, otherwise at level debug.
	Log *slog.Logger
}

// Recorder writes core/v1 events. A repeated event increases the count of the first one, many similar ones are
// combined, and an object that causes too many is throttled, all as in the kubelet. Safe for concurrent use.
type Recorder struct {
	cfg RecorderConfig
	// queue holds pointers: its memory is allocated at once, and events are few. It is nil without an API server, so
	// that nothing is ever queued.
	queue chan *occurrence
	level slog.Level // of the line that each event is logged with
}

// NewRecorder returns a Recorder that writes nothing before Run.
func NewRecorder(cfg RecorderConfig) *Recorder {
	if cfg.Client == nil {
		return &Recorder{cfg: cfg, level: slog.LevelInfo}
	}
	return &Recorder{cfg: cfg, level: slog.LevelDebug, queue: make(chan *occurrence, eventQueue)}
}

// Event records that something happened to ref. eventType is corev1.EventTypeNormal or EventTypeWarning; reason is one
// of the kubelet's CamelCase reasons. It never blocks: if eventQueue events wait already, it is dropped.
func (r *Recorder) Event(ref Ref, eventType, reason, message string) {
	r.record(ref, eventType, reason, message, nil)
}

func (r *Recorder) record(ref Ref, eventType, reason, message string, annotations map[string]string) {
	message = podutil.Shorten(message, eventMessage)
	r.cfg.Log.Log(context.Background(), r.level, "event", "object", ref.Kind+" "+ref.Namespace+"/"+ref.Name,
		"part", ref.FieldPath, "type", eventType, "reason", reason, "message", message)
	select {
	case r.queue <- &occurrence{
		ref:         ref,
		kind:        eventType,
		reason:      reason,
		message:     message,
		annotations: annotations,
		at:          time.Now(),
	}:
	default: // the queue is full, or there is no API server
	}
}

// PodEvent records that something happened to a pod, or to one of its containers if container is not empty. Of a pod
// that is known by its UID alone nothing is recorded: the API server refuses an event about an object without a name.
func (r *Recorder) PodEvent(pod *corev1.Pod, container, eventType, reason, message string) {
	if pod.Name == "" {
		return
	}
	r.Event(refOf(pod, container), eventType, reason, message)
}

// ClaimEvent records that something happened to a PersistentVolumeClaim.
func (r *Recorder) ClaimEvent(claim *corev1.PersistentVolumeClaim, eventType, reason, message string) {
	ref := Ref{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	r.Event(ref, eventType, reason, message)
}

// AnnotatedPodEvent records an event about a pod, with annotations.
func (r *Recorder) AnnotatedPodEvent(pod *corev1.Pod, eventType, reason, message string,
	annotations map[string]string) {
	r.record(refOf(pod, ""), eventType, reason, message, annotations)
}

// refOf names a pod, or one of its containers if container is not empty.
func refOf(pod *corev1.Pod, container string) Ref {
	return Ref{
		Kind:      "Pod",
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       pod.UID,
		FieldPath: fieldPath(pod, container),
	}
}

// NodeEvent records that something happened to the node. Before the UID of its object is known, the name takes its
// place: kubectl looks for events with either.
func (r *Recorder) NodeEvent(eventType, reason, message string) {
	uid := cmp.Or(r.cfg.NodeUID(), types.UID(r.cfg.Node))
	r.Event(Ref{Kind: "Node", Name: r.cfg.Node, UID: uid}, eventType, reason, message)
}

// fieldPath returns the path of a container in the form that events have: spec.containers{app}. It is empty for a
// container that the pod does not have.
func fieldPath(pod *corev1.Pod, container string) string {
	if container == "" {
		return ""
	}
	role, c := podutil.Container(&pod.Spec, container)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("spec.%s{%s}", role.Field(), container)
}

// Run writes events until ctx ends, those of one object in order. An event is written up to a second after it happened,
// together with those that followed: its repetitions cost no request of their own, and its request does not compete
// with the start of its pod.
func (r *Recorder) Run(ctx context.Context) {
	c := newCorrelator(r.cfg.Node)
	var held batch
	for {
		var due <-chan time.Time
		for open := true; open; {
			select {
			case <-ctx.Done():
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventLast)
				defer cancel()
				r.writeAll(last, &held)
				return
			case o := <-r.queue:
				if held.add(c.observe(*o)); due == nil {
					due = time.After(eventHold)
				}
				open = len(held) < eventBatch
			case <-due:
				open = false
			}
		}
		r.writeAll(ctx, &held)
	}
}

// batch holds the events that wait to be written, in order, each once.
type batch []heldEvent

// heldEvent is an event, and whether the API server has it already, with a lower count.
type heldEvent struct {
	*corev1.Event
	again bool
}

// add appends an event; a repetition of one that waits replaces it.
func (b *batch) add(event *corev1.Event, again bool) {
	if event == nil {
		return
	}
	for i, e := range *b {
		if e.Name == event.Name && e.Namespace == event.Namespace {
			(*b)[i].Event = event
			return
		}
	}
	*b = append(*b, heldEvent{event, again})
}

// byObject returns the events about each object, in order.
func (b batch) byObject() []batch {
	var all []batch
	at := map[types.UID]int{}
	for _, e := range b {
		i, ok := at[e.InvolvedObject.UID]
		if !ok {
			i = len(all)
			at[e.InvolvedObject.UID] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], e)
	}
	return all
}

// writeAll writes the held events of one object after the other, so that they take little from the statuses. Events
// that are late are written for several objects at a time.
func (r *Recorder) writeAll(ctx context.Context, held *batch) {
	var writers errgroup.Group
	writers.SetLimit(eventWriters)
	for _, events := range held.byObject() {
		if time.Since(events[0].LastTimestamp.Time) < eventLate {
			_ = writers.Wait()
		}
		writers.Go(func() error {
			for _, e := range events {
				if ctx.Err() == nil {
					r.write(ctx, e.Event, e.again)
				}
			}
			return nil
		})
	}
	_ = writers.Wait() // no error is returned
	*held = nil
}

// write sends one event to the API server, and retries during an outage.
func (r *Recorder) write(ctx context.Context, event *corev1.Event, again bool) {
	began := time.Now() // or the last outage
	for wait := time.Second; ; wait = min(2*wait, eventRetryMax) {
		err := r.try(ctx, event, again)
		if err == nil || ctx.Err() != nil {
			return
		}
		slow := isSlow(err)
		if !isOutage(err) || slow && time.Since(began) > eventSlow {
			r.refused(event, err) // no other event waits for one that the API server cannot take
			return
		}
		if !slow {
			began = time.Now()
		}
		if time.Since(event.LastTimestamp.Time) > eventLifetime {
			return
		}
		if !backoff.Sleep(ctx, backoff.Jitter(wait)) {
			return
		}
	}
}

// try makes one attempt. A repeated event that has expired at the API server is created again.
func (r *Recorder) try(ctx context.Context, event *corev1.Event, again bool) error {
	if again {
		err := r.countUp(ctx, event)
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	return client.BoundedWrite(ctx, func(ctx context.Context) error {
		return r.cfg.Client.Post().Namespace(event.Namespace).Resource("events").Body(event).MaxRetries(0).Do(ctx).Error()
	})
}

func (r *Recorder) countUp(ctx context.Context, event *corev1.Event) error {
	body, err := json.Marshal(struct {
		Count         int32       `json:"count"`
		LastTimestamp metav1.Time `json:"lastTimestamp"`
		Message       string      `json:"message"`
	}{event.Count, event.LastTimestamp, event.Message})
	if err != nil {
		return err
	}
	return client.BoundedWrite(ctx, func(ctx context.Context) error {
		return r.cfg.Client.Patch(types.StrategicMergePatchType).Namespace(event.Namespace).Resource("events").
			Name(event.Name).Body(body).MaxRetries(0).Do(ctx).Error()
	})
}

// refused logs an event that the API server does not accept. Two reasons are normal: its namespace is being deleted,
// or an earlier attempt had succeeded and only its answer was lost.
func (r *Recorder) refused(event *corev1.Event, err error) {
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return
	}
	r.cfg.Log.Warn("API server refused an event, dropping it", "object", event.InvolvedObject.Kind+" "+
		event.InvolvedObject.Namespace+"/"+event.InvolvedObject.Name, "reason", event.Reason, "err", err)
}
