package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/kube/client"
)

const (
	// collectionTimeout is the shortest timeoutSeconds asked for a stream of Follow. Bookmarks let the next stream
	// resume where one ended.
	collectionTimeout = 5 * time.Minute
	// initialStateLimit bounds the wait for the end of a streamed initial state, before a plain list is tried.
	initialStateLimit = 30 * time.Second
)

// Sink receives the state of what is followed. All calls come from one goroutine, in order.
type Sink interface {
	// Replace receives the whole state: after the start, after an outage, and whenever the server has expired the version
	// to resume from. After an outage it may be older than what was received before.
	Replace(objs []metav1.Object)
	// Set receives an object that was added or changed.
	Set(obj metav1.Object)
	// Delete receives an object that was deleted, in its last state.
	Delete(obj metav1.Object)
	// Trouble receives an error when the state can no longer be followed, and nil when it can again: once for each outage,
	// not for each attempt. A connection that is lost and back with the next attempt is no outage.
	Trouble(err error)
}

// Follow lists and watches t until ctx ends, and passes what it reads to sink. The initial state is streamed
// (WatchList) or, if the server cannot do that, listed. A lost connection resumes at the last resource version seen.
// Everything is read again if the server has expired that version, after a watch that ended at once, and after an
// outage: etcd may have been restored from a backup meanwhile, so that the version exists a second time. Another server
// may have another history, too. Attempts back off with jitter and never stop.
func (t Target) Follow(ctx context.Context, sink Sink) {
	f := follower{target: t, sink: sink}
	for {
		worked, err := f.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && worked == 0 && !f.troubled {
			f.troubled = true
			sink.Trouble(err)
		}
		if !backoff.Sleep(ctx, f.backoff.Next(worked)) {
			return
		}
	}
}

type follower struct {
	target   Target
	sink     Sink
	backoff  backoff.Backoff
	version  string        // where to resume; empty while the state is not known
	server   client.Server // which has sent that version
	troubled bool
	short    bool // the last stream ended at once
}

// attempt opens one stream and follows it to its end. It returns how long it worked, and an error unless the stream
// ended as agreed.
func (f *follower) attempt(ctx context.Context) (worked time.Duration, err error) {
	var start time.Time
	defer func() {
		if !start.IsZero() {
			worked = time.Since(start)
		}
		f.short = errors.Is(err, errShort)
		switch {
		case Forgotten(err):
			f.version, err = "", nil // no outage: the next attempt reads the whole state
		case f.short:
			f.version, worked = "", 0
		case start.IsZero() && away(err):
			f.version = ""
		}
	}()
	if f.version == "" {
		f.server = 0
	}
	s, err := f.begin(f.server.On(ctx))
	if err != nil {
		return 0, err
	}
	defer s.Close()
	start = time.Now()
	if !f.short {
		f.working()
	}
	return 0, f.events(s)
}

// begin opens a stream that continues from a known state. The whole state is streamed or, where the server does not do
// that now, listed.
//
// Either way the state is consistent: at least as new as the request. resourceVersion=0 would allow a server that lags
// behind etcd to answer with an older state, in which pods are missing that run on this node, and they would be ended
// as orphans. A consistent list is cheap: since Kubernetes 1.31 the server answers it from its cache, once that is new
// enough.
func (f *follower) begin(ctx context.Context) (*Stream, error) {
	if f.version != "" {
		return f.open(ctx)
	}
	s, err := f.open(ctx)
	if err == nil {
		if err = f.initialState(s); err == nil {
			return s, nil
		}
		s.Close()
	}
	if !refused(err) {
		return nil, err
	}
	if err := f.list(ctx); err != nil {
		return nil, err
	}
	return f.open(ctx)
}

var (
	// errInitialState says that a streamed initial state did not end in time, or that its stream ended before it.
	errInitialState = errors.New("the server did not send the whole state")
	// errShort says that a stream ended within a second, without an event. A proxy may end all of them like that: then
	// only a list shows what has changed.
	errShort = errors.New("it ended at once")
)

// refused reports whether err, from streaming the initial state, leaves hope for a list: the server answered, but does
// not know WatchList, cannot do it with its etcd, or its cache lags behind. The answer counts for one attempt only.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.Is(err, errInitialState) || errors.As(err, &status) && !apierrors.IsUnauthorized(err) &&
		!apierrors.IsForbidden(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsServiceUnavailable(err)
}

// Forgotten reports whether err says that the server does not have the requested version: it is too old or, after a
// restore of etcd, too new, or another server has sent it. The caller has to read the whole state again.
func Forgotten(err error) bool {
	return errors.Is(err, client.ErrOtherServer) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// away reports whether err, of an attempt to open a stream, may come from an outage during which etcd was restored: the
// server cannot be reached, or a load balancer or the server says that it cannot serve.
func away(err error) bool {
	var status apierrors.APIStatus
	return err != nil && (!errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError)
}

func (f *follower) working() {
	if f.troubled {
		f.troubled = false
		f.sink.Trouble(nil)
	}
}

func (f *follower) open(ctx context.Context) (*Stream, error) {
	opts := metav1.ListOptions{ResourceVersion: f.version, AllowWatchBookmarks: true}
	if f.version == "" {
		yes := true
		opts.SendInitialEvents, opts.ResourceVersionMatch = &yes, metav1.ResourceVersionMatchNotOlderThan
	}
	return f.target.Open(ctx, opts, collectionTimeout)
}

// initialState reads the streamed state up to the bookmark that ends it.
func (f *follower) initialState(s *Stream) error {
	limit := time.AfterFunc(initialStateLimit, s.Close)
	defer limit.Stop()
	state := map[string]metav1.Object{}
	for {
		ev, err := s.Next()
		if err != nil && (!limit.Stop() || errors.Is(err, io.EOF)) {
			return fmt.Errorf("watch %s: %w", f.target, errInitialState)
		}
		if err != nil {
			return fmt.Errorf("watch %s, initial state: %w", f.target, err)
		}
		key := ev.Object.GetNamespace() + "/" + ev.Object.GetName()
		switch ev.Type {
		case apiwatch.Added, apiwatch.Modified:
			state[key] = ev.Object
		case apiwatch.Deleted:
			delete(state, key)
		case apiwatch.Bookmark:
			if ev.Object.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
				continue
			}
			f.sink.Replace(slices.Collect(maps.Values(state)))
			f.version = ev.Object.GetResourceVersion()
			return nil
		}
	}
}

// list asks for the state in one answer.
func (f *follower) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, client.RequestTimeout)
	defer cancel()
	objs, version, err := f.target.List(ctx, "")
	if err != nil {
		return fmt.Errorf("list %s: %w", f.target, err)
	}
	f.sink.Replace(objs)
	f.version = version
	return nil
}

func (f *follower) events(s *Stream) error {
	start := time.Now()
	for seen := false; ; seen = true {
		ev, err := s.Next()
		switch {
		case err != nil && !seen && time.Since(start) < time.Second:
			return fmt.Errorf("watch %s: %w: %w", f.target, errShort, err)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("watch %s: %w", f.target, err)
		}
		f.working()
		switch ev.Type {
		case apiwatch.Added, apiwatch.Modified:
			f.sink.Set(ev.Object)
		case apiwatch.Deleted:
			f.sink.Delete(ev.Object)
		}
		f.version = ev.Object.GetResourceVersion()
	}
}
