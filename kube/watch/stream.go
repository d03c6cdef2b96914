package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
)

const (
	// maxFrame bounds one watch event. etcd refuses objects above 1.5 MiB by default; the rest is a reserve.
	maxFrame = 16 << 20
	// graceAfterTimeout is how much longer than its timeoutSeconds a stream may stay open before the agent closes it.
	// If the server or a proxy has lost the stream, the agent would otherwise wait for events for ever.
	graceAfterTimeout = 30 * time.Second
)

// Target is what a request lists or watches.
type Target struct {
	// Client speaks to the API group of Resource.
	Client rest.Interface
	// Resource is the plural, as in URLs: "pods".
	Resource string
	// Namespace is empty for all namespaces and for cluster-scoped resources.
	Namespace string
	// FieldSelector narrows the objects, e.g. "spec.nodeName=a" or "metadata.name=b". Empty selects all.
	FieldSelector string
}

func (t Target) String() string {
	s := t.Resource
	if t.Namespace != "" {
		s += " in " + t.Namespace
	}
	if t.FieldSelector != "" {
		s += " with " + t.FieldSelector
	}
	return s
}

// Event is one line of a watch. Object is a new value that belongs to the caller; managedFields are already dropped.
type Event struct {
	// Type is Added, Modified, Deleted or Bookmark.
	Type   apiwatch.EventType
	Object metav1.Object
}

// Stream is one open watch. It has no goroutine of its own: Next reads and decodes in that of its caller.
type Stream struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	events runtime.Decoder // the frame: metav1.WatchEvent
	object runtime.Decoder // what the frame wraps
}

// List returns the objects of t, and the resource version from which a watch brings all later changes. atLeast is how
// new they must be, as resourceVersion of a request: empty for the state in etcd, "0" for any state that the API
// server has in memory. The objects belong to the caller; managedFields are already dropped. Like Open, it is not
// subject to the rate limiter.
func (t Target) List(ctx context.Context, atLeast string) (objs []metav1.Object, version string, err error) {
	opts := metav1.ListOptions{ResourceVersion: atLeast, FieldSelector: t.FieldSelector}
	obj, err := t.Client.Get().Throttle(nil).Namespace(t.Namespace).Resource(t.Resource).
		VersionedParams(&opts, client.Parameters).Do(ctx).Get()
	if err != nil {
		return nil, "", client.Answer(err)
	}
	l, err := meta.ListAccessor(obj)
	if err != nil {
		return nil, "", err
	}
	// With an allocation for each item: a pointer into the list would keep the whole list in memory.
	err = meta.EachListItemWithAlloc(obj, func(o runtime.Object) error {
		m, ok := o.(metav1.Object)
		if !ok {
			return fmt.Errorf("item is a %T, which has no metadata", o)
		}
		m.SetManagedFields(nil)
		objs = append(objs, m)
		return nil
	})
	return objs, l.GetResourceVersion(), err
}

// Open starts a watch at opts.ResourceVersion. The field selector comes from t, and opts.TimeoutSeconds is set to a
// random value between timeout and twice that, so that the watches of many nodes do not end together. Errors are those
// of the API server (k8s.io/apimachinery/pkg/api/errors, see client.Answer) or of the connection, also if there is no
// answer within client.RequestTimeout.
func (t Target) Open(ctx context.Context, opts metav1.ListOptions, timeout time.Duration) (*Stream, error) {
	timeout += rand.N(timeout)
	seconds := int64(timeout / time.Second)
	opts.Watch = true
	opts.FieldSelector, opts.TimeoutSeconds = t.FieldSelector, &seconds
	ctx, cancel := context.WithTimeout(ctx, timeout+graceAfterTimeout)
	limit := time.AfterFunc(client.RequestTimeout, cancel) // for the header; events may take longer
	body, err := t.Client.Get().
		Namespace(t.Namespace).Resource(t.Resource).
		VersionedParams(&opts, client.Parameters).
		SetHeader("Accept", runtime.ContentTypeProtobuf).
		// As in client-go's own watches, the rate limiter does not count them: it protects the server from many requests, and
		// hundreds of watches after an outage must not delay status updates. Retry-After is returned as an error, for the
		// caller's back-off.
		Throttle(nil).MaxRetries(0).
		Stream(ctx)
	if answered := limit.Stop(); err != nil {
		cancel()
		if !answered {
			err = fmt.Errorf("the API server has not answered within %s: %w", client.RequestTimeout, err)
		}
		return nil, fmt.Errorf("watch %s: %w", t, client.Answer(err))
	}
	info, ok := runtime.SerializerInfoForMediaType(client.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok || info.StreamSerializer == nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("watch %s: no decoder for %s", t, runtime.ContentTypeProtobuf), body.Close())
	}
	return &Stream{body: body, cancel: cancel, events: info.StreamSerializer.Serializer, object: info.Serializer}, nil
}

// Next waits for the next event. It returns io.EOF when the server ended the stream at its timeout, an API status
// error when the server says why it cannot continue (if Forgotten reports true, list again), or else a connection
// error.
func (s *Stream) Next() (Event, error) {
	frame, err := s.frame()
	if err != nil {
		return Event{}, err
	}
	var got metav1.WatchEvent
	if _, _, err := s.events.Decode(frame, nil, &got); err != nil {
		return Event{}, fmt.Errorf("decode watch event: %w", err)
	}
	obj, err := runtime.Decode(s.object, got.Object.Raw)
	if err != nil {
		return Event{}, fmt.Errorf("decode object of watch event %q: %w", got.Type, err)
	}
	switch t := apiwatch.EventType(got.Type); t {
	case apiwatch.Error:
		return Event{}, apierrors.FromObject(obj)
	case apiwatch.Added, apiwatch.Modified, apiwatch.Deleted, apiwatch.Bookmark:
		m, ok := obj.(metav1.Object)
		if !ok {
			return Event{}, fmt.Errorf("watch event %q holds a %T, which has no metadata", got.Type, obj)
		}
		m.SetManagedFields(nil)
		return Event{Type: t, Object: m}, nil
	default:
		return Event{}, fmt.Errorf("unknown watch event type %q", got.Type)
	}
}

// frame reads one event: a big-endian length, then as many bytes. The buffer is not kept between events: most streams
// wait for hours, and a Secret may have a megabyte.
func (s *Stream) frame() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(s.body, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return nil, fmt.Errorf("watch event of %d bytes is above the limit of %d", n, maxFrame)
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(s.body, buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return buf, nil
}

// Close ends the watch; a Next that waits returns an error.
func (s *Stream) Close() {
	s.cancel()
	s.body.Close() // its error does not matter: the stream is only read
}

// Older reports whether a resource version comes before another one of the same object. Without a version nothing is
// older.
func Older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
