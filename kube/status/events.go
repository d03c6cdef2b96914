package status

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	component     = "kubelet" // what dashboards and alerts select events by
	eventQueue    = 1000
	eventRetryMax = 10 * time.Second
	eventLifetime = time.Hour // the API server's own; an older event helps nobody
)

// Ref names the object an event is about.
type Ref struct {
	Kind      string // Pod or Node
	Namespace string // empty for a Node
	Name      string
	UID       types.UID // of a static pod: the UID the node gave it; of a Node: its name
	FieldPath string    // which part of the object, like spec.containers{app}; may be empty
}

// RecorderConfig says how a Recorder reaches the API server.
type RecorderConfig struct {
	// Client speaks to /api/v1. Give it a rate limiter of its own (eventRecordQPS, eventBurst), so that events never delay
	// statuses. Nil means there is no API server (standalone): events are only logged.
	Client rest.Interface
	// Node is the node's name, the source host of each event.
	Node string
	// Log gets each event: as info in standalone mode, else as debug.
	Log *slog.Logger
}

// Recorder writes core/v1 events. Repeats of an event count up the first one, many similar ones are combined, and an
// object that causes too many is throttled, all as users know it from the kubelet. Safe for concurrent use.
type Recorder struct {
	cfg     RecorderConfig
	queue   chan occurrence
	dropped atomic.Int64
}

// NewRecorder returns a Recorder that writes nothing before Run.
func NewRecorder(cfg RecorderConfig) *Recorder {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Recorder{cfg: cfg, queue: make(chan occurrence, eventQueue)}
}

// Event says that something happened to ref. eventType is corev1.EventTypeNormal or EventTypeWarning; reason is one of
// the kubelet's CamelCase reasons. It never blocks: if 1000 events wait already, this one is dropped and counted.
func (r *Recorder) Event(ref Ref, eventType, reason, message string) {
	level := slog.LevelDebug
	if r.cfg.Client == nil {
		level = slog.LevelInfo
	}
	r.cfg.Log.Log(context.Background(), level, "event", "object", ref.Kind+" "+ref.Namespace+"/"+ref.Name,
		"part", ref.FieldPath, "type", eventType, "reason", reason, "message", message)
	if r.cfg.Client == nil {
		return
	}
	select {
	case r.queue <- occurrence{ref: ref, kind: eventType, reason: reason, message: message, at: time.Now()}:
	default:
		r.dropped.Add(1)
	}
}

// Dropped returns how many events were lost because too many waited, or because the API server was away for an hour.
func (r *Recorder) Dropped() int64 { return r.dropped.Load() }

// Run writes events, one after the other, until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	c := &correlator{node: r.cfg.Node}
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-r.queue:
			if event, again := c.observe(o); event != nil {
				r.write(ctx, event, again)
			}
		}
	}
}

// write brings one event to the API server, and waits as long as there is none.
func (r *Recorder) write(ctx context.Context, event *corev1.Event, again bool) {
	for wait := time.Second; ; wait = min(2*wait, eventRetryMax) {
		err := r.try(ctx, event, again)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !isOutage(err) {
			r.refused(event, err)
			return
		}
		if time.Since(event.LastTimestamp.Time) > eventLifetime {
			r.dropped.Add(1)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(jitter(wait)):
		}
	}
}

// try makes one attempt. An event to count up that has expired at the API server is written anew.
func (r *Recorder) try(ctx context.Context, event *corev1.Event, again bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if again {
		err := r.countUp(ctx, event)
		if !errors.Is(goneOr(err), errPodGone) {
			return err
		}
	}
	return r.cfg.Client.Post().Namespace(event.Namespace).Resource("events").Body(event).MaxRetries(0).Do(ctx).Error()
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
	return r.cfg.Client.Patch(types.StrategicMergePatchType).Namespace(event.Namespace).Resource("events").
		Name(event.Name).Body(body).MaxRetries(0).Do(ctx).Error()
}

// refused tells of an event that the API server will never take. Two reasons are nobody's fault: its namespace is being
// deleted, or an earlier try had arrived and only the answer was lost.
func (r *Recorder) refused(event *corev1.Event, err error) {
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return
	}
	r.cfg.Log.Warn("event refused by the API server", "object", event.InvolvedObject.Kind+" "+
		event.InvolvedObject.Namespace+"/"+event.InvolvedObject.Name, "reason", event.Reason, "err", err)
}
