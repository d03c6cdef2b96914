package status

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The limits of the kubelet.
const (
	similarLimit  = 10               // this many different messages of one reason …
	similarWindow = 10 * time.Minute // … with no longer pause between them are combined into one event
	spamBurst     = 25               // events about one object at once
	spamRefill    = 5 * time.Minute  // until one more is allowed
	maxEventName  = 253
	memoryKeys    = 2048 // keys that each of three memories has at most
)

const combinedPrefix = "(combined from similar events): "

// occurrence is one call of Recorder.Event, which may or may not become an event of its own.
type occurrence struct {
	ref             Ref
	kind            string // Normal or Warning
	reason, message string
	annotations     map[string]string
	at              time.Time
}

// correlator decides whether an occurrence becomes a new event, increases the count of an earlier one, or is dropped.
// It has no lock: Recorder.Run owns it.
type correlator struct {
	node     string
	similar  memory[similarity]
	seen     memory[sent]
	budget   memory[bucket]
	lastName int64
}

type similarity struct {
	messages map[string]struct{}
	last     time.Time
}

// sent is an event that was sent to the API server, or is about to be.
type sent struct {
	name  string
	first time.Time
	count int32
}

// bucket holds tokens as of at.
type bucket struct {
	tokens float64
	at     time.Time
}

// observe returns the event to write, and whether it was written before with a lower count; nil if the object has used
// up its budget.
func (c *correlator) observe(o occurrence) (event *corev1.Event, again bool) {
	object := strings.Join([]string{o.ref.Kind, o.ref.Namespace, o.ref.Name, string(o.ref.UID), o.kind}, "\x00")
	key := strings.Join([]string{object, o.reason, o.ref.FieldPath, o.message}, "\x00")
	if group := object + "\x00" + o.reason; c.combine(group, o) {
		key, o.message = group, combinedPrefix+o.message
	}
	s, known := c.seen.get(key)
	if !known {
		s = sent{name: c.name(o), first: o.at}
	}
	s.count++
	c.seen.put(key, s)
	if !c.spend(object, o.at) {
		return nil, false
	}
	return c.event(o, s), known
}

// combine reports whether there are so many occurrences with the reason of o and other messages that they share one
// event.
func (c *correlator) combine(group string, o occurrence) bool {
	s, ok := c.similar.get(group)
	if !ok || o.at.Sub(s.last) > similarWindow {
		s = similarity{messages: map[string]struct{}{}}
	}
	s.last = o.at
	_, said := s.messages[o.message]
	many := !said && len(s.messages) >= similarLimit-1
	if !said && !many {
		s.messages[o.message] = struct{}{}
	}
	c.similar.put(group, s)
	return many
}

// spend takes one token of the object's budget, and reports whether there was one.
func (c *correlator) spend(object string, now time.Time) bool {
	b, ok := c.budget.get(object)
	if !ok {
		b = bucket{tokens: spamBurst, at: now}
	}
	b.tokens = min(spamBurst, b.tokens+now.Sub(b.at).Seconds()/spamRefill.Seconds())
	b.at = now
	enough := b.tokens >= 1
	if enough {
		b.tokens--
	}
	c.budget.put(object, b)
	return enough
}

// name returns a name that no earlier event of this process has: the object's name and a time.
func (c *correlator) name(o occurrence) string {
	c.lastName = max(o.at.UnixNano(), c.lastName+1)
	suffix := fmt.Sprintf(".%x", c.lastName)
	name := o.ref.Name
	if limit := maxEventName - len(suffix); len(name) > limit {
		name = strings.TrimRight(name[:limit], "-.")
	}
	return name + suffix
}

func (c *correlator) event(o occurrence, s sent) *corev1.Event {
	namespace := o.ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: namespace, Annotations: o.annotations},
		InvolvedObject: corev1.ObjectReference{
			Kind:       o.ref.Kind,
			APIVersion: "v1",
			Namespace:  o.ref.Namespace,
			Name:       o.ref.Name,
			UID:        o.ref.UID,
			FieldPath:  o.ref.FieldPath,
		},
		Type:                o.kind,
		Reason:              o.reason,
		Message:             o.message,
		Count:               s.count,
		FirstTimestamp:      metav1.NewTime(s.first),
		LastTimestamp:       metav1.NewTime(o.at),
		Source:              corev1.EventSource{Component: component, Host: c.node},
		ReportingController: component,
		ReportingInstance:   c.node,
	}
}

// memory is a map that drops what has not been used for long, so that it stays bounded: it has two generations of at
// most memoryKeys/2 keys.
type memory[V any] struct{ young, old map[string]V }

func (m *memory[V]) get(key string) (V, bool) {
	v, ok := m.young[key]
	if !ok {
		v, ok = m.old[key]
	}
	return v, ok
}

func (m *memory[V]) put(key string, v V) {
	if _, ok := m.young[key]; !ok && len(m.young) >= memoryKeys/2 {
		m.old, m.young = m.young, nil
	}
	if m.young == nil {
		m.young = map[string]V{}
	}
	m.young[key] = v
}
