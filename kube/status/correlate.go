package status

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The bounds below are those every user of `kubectl describe` knows from the kubelet.
const (
	similarLimit  = 10               // so many different messages of one reason …
	similarWindow = 10 * time.Minute // … with no longer pause between them are combined into one event
	spamBurst     = 25               // events about one object at once
	spamRefill    = 5 * time.Minute  // for one more
	maxEventName  = 253
	memoryKeys    = 2048 // keys remembered at most, in each of three memories
)

const combinedPrefix = "(combined from similar events): "

// occurrence is one thing that happened, before it is known whether it makes an event of its own.
type occurrence struct {
	ref             Ref
	kind            string // Normal or Warning
	reason, message string
	at              time.Time
}

// correlator decides what becomes of occurrences: a new event, one more count on an old one, or nothing. It has no lock:
// Recorder.Run owns it.
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

// sent is an event that the API server has, or is about to have.
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

// observe returns the event to write, and whether it counts up one that was written before; nil if the object has used up
// its budget.
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

// combine reports whether o is one of so many with the same reason and other messages that they share one event.
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

// spend takes one token of the object's budget, and reports false if there is none.
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

// name makes a name that no earlier event of this process has: the object's name and a time.
func (c *correlator) name(o occurrence) string {
	c.lastName = max(o.at.UnixNano(), c.lastName+1)
	suffix := fmt.Sprintf(".%x", c.lastName)
	name := o.ref.Name
	if room := maxEventName - len(suffix); len(name) > room {
		name = strings.TrimRight(name[:room], "-.")
	}
	return name + suffix
}

func (c *correlator) event(o occurrence, s sent) *corev1.Event {
	namespace := o.ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{
			Kind: o.ref.Kind, APIVersion: "v1", Namespace: o.ref.Namespace, Name: o.ref.Name, UID: o.ref.UID,
			FieldPath: o.ref.FieldPath,
		},
		Type: o.kind, Reason: o.reason, Message: o.message, Count: s.count,
		FirstTimestamp: metav1.NewTime(s.first), LastTimestamp: metav1.NewTime(o.at),
		Source:              corev1.EventSource{Component: component, Host: c.node},
		ReportingController: component, ReportingInstance: c.node,
	}
}

// memory is a map that forgets what was not used for long, so that it stays bounded: two generations of at most
// memoryKeys/2 keys.
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
