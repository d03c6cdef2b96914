package status

import (
	"fmt"
	"hash/maphash"
	"slices"
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
	recentKeys    = 2048 // keys that each recentMap has at most
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
// It has no lock: Recorder.Run owns it. Its memories hold hashes instead of texts: they outlive the pods.
type correlator struct {
	node     string
	seed     maphash.Seed
	similar  recentMap[similarity]
	seen     recentMap[sent]
	budget   recentMap[bucket]
	lastName int64
}

func newCorrelator(node string) *correlator { return &correlator{node: node, seed: maphash.MakeSeed()} }

type similarity struct {
	messages []uint64
	last     time.Time
}

// sent is an event that was sent to the API server, or is about to be. number makes its name unique.
type sent struct {
	number int64
	first  time.Time
	count  int32
}

// bucket holds tokens as of at.
type bucket struct {
	tokens float64
	at     time.Time
}

// observe returns the event to write, and whether it was written before with a lower count; nil if the object has used
// up its budget.
func (c *correlator) observe(o occurrence) (event *corev1.Event, again bool) {
	about := []string{o.ref.Kind, o.ref.Namespace, o.ref.Name, string(o.ref.UID), o.kind}
	object, group := c.key(about), c.key(about, o.reason)
	key := c.key(about, o.reason, o.ref.FieldPath, o.message)
	if c.combine(group, o) {
		key, o.message = group, combinedPrefix+o.message
	}
	s, known := c.seen.get(key)
	if !known {
		c.lastName = max(o.at.UnixNano(), c.lastName+1)
		s = sent{number: c.lastName, first: o.at}
	}
	s.count++
	c.seen.put(key, s)
	if !c.spend(object, o.at) {
		return nil, false
	}
	return c.event(o, s), known
}

// key returns a hash of texts.
func (c *correlator) key(about []string, more ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	for _, text := range slices.Concat(about, more) {
		_, _ = h.WriteString(text) // never fails
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// combine reports whether there are so many occurrences with the reason of o and other messages that they share one
// event.
func (c *correlator) combine(group uint64, o occurrence) bool {
	s, ok := c.similar.get(group)
	if !ok || o.at.Sub(s.last) > similarWindow {
		s = similarity{}
	}
	s.last = o.at
	message := c.key(nil, o.message)
	said := slices.Contains(s.messages, message)
	many := !said && len(s.messages) >= similarLimit-1
	if !said && !many {
		s.messages = append(s.messages, message)
	}
	c.similar.put(group, s)
	return many
}

// spend takes one token of the object's budget, and reports whether there was one.
func (c *correlator) spend(object uint64, now time.Time) bool {
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

// eventName returns the name of an event: that of its object, and a number that no other event of this process has.
func eventName(object string, number int64) string {
	suffix, name := fmt.Sprintf(".%x", number), object
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
		ObjectMeta: metav1.ObjectMeta{
			Name:        eventName(o.ref.Name, s.number),
			Namespace:   namespace,
			Annotations: o.annotations,
		},
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

// recentMap is a map that drops what has not been used for long, so that it stays bounded: it has two generations of at
// most recentKeys/2 keys.
type recentMap[V any] struct{ young, old map[uint64]V }

func (m *recentMap[V]) get(key uint64) (V, bool) {
	v, ok := m.young[key]
	if !ok {
		v, ok = m.old[key]
	}
	return v, ok
}

func (m *recentMap[V]) put(key uint64, v V) {
	if _, ok := m.young[key]; !ok && len(m.young) >= recentKeys/2 {
		m.old, m.young = m.young, nil
	}
	if m.young == nil {
		m.young = map[uint64]V{}
	}
	m.young[key] = v
}
