package server

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serveLogs serves GET /containerLogs/namespace/pod/container with the fields of PodLogOptions as query.
func (s *Server) serveLogs(w http.ResponseWriter, r *http.Request, at place) {
	of, err := at.named()
	if at.uid != "" {
		err = NotFound("404: Page Not Found")
	}
	var o *corev1.PodLogOptions
	if err == nil {
		o, err = logOptions(r.URL.Query())
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	// A browser must not take what the container has written for HTML.
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	out := &flushed{w: w, c: http.NewResponseController(w), idle: s.cfg.Streams.Idle}
	stdout, stderr := out.unless(*o.Stream == corev1.LogStreamStderr), out.unless(*o.Stream == corev1.LogStreamStdout)
	err = s.cfg.Agent.Logs(r.Context(), of, o, stdout, stderr)
	switch {
	case err == nil || r.Context().Err() != nil:
	case !out.extended.IsZero(): // the header has been sent
		_, _ = out.Write([]byte(err.Error() + "\n"))
	default:
		s.failLog(w, err)
	}
}

// failLog answers with 400, as the kubelet does, unless the error has a status.
func (s *Server) failLog(w http.ResponseWriter, err error) {
	if _, ok := errors.AsType[*Error](err); !ok {
		err = Errorf(http.StatusBadRequest, "%v", err)
	}
	s.fail(w, err)
}

// logOptions parses the query of a log request and refuses what the API server refuses (PodLogOptions).
func logOptions(q url.Values) (*corev1.PodLogOptions, error) {
	o := &corev1.PodLogOptions{Container: q.Get("container")}
	all := corev1.LogStreamAll
	o.Stream = &all
	unreadable := func(name string) error {
		return Errorf(http.StatusBadRequest, "Unable to decode query: %s=%q", name, short(q.Get(name)))
	}
	bad := func(name string) error {
		return Errorf(http.StatusUnprocessableEntity, "Invalid request: %s=%q", name, short(q.Get(name)))
	}
	for name, into := range map[string]*bool{"follow": &o.Follow, "previous": &o.Previous, "timestamps": &o.Timestamps} {
		*into = boolean(q, name)
	}
	if tail := q.Get("tail"); tail == "all" {
		q.Del("tailLines")
	} else if tail != "" {
		q.Set("tailLines", tail)
	}
	for name, n := range map[string]struct {
		into  **int64
		least int64
	}{"tailLines": {&o.TailLines, 0}, "sinceSeconds": {&o.SinceSeconds, 1}, "limitBytes": {&o.LimitBytes, 1}} {
		if text := q.Get(name); text != "" {
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, unreadable(name)
			}
			if v < n.least {
				return nil, bad(name)
			}
			*n.into = &v
		}
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, unreadable("sinceTime")
		}
		if o.SinceSeconds != nil {
			return nil, bad("sinceTime")
		}
		o.SinceTime = &metav1.Time{Time: at}
	}
	switch text := q.Get("stream"); text {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if o.Stream = &text; o.TailLines != nil {
			return nil, bad("tailLines")
		}
	default:
		return nil, bad("stream")
	}
	return o, nil
}

// boolean reports whether a flag is set, as the API defines it: present without a value, or with one other than "0" and
// "false" in upper or lower case.
func boolean(q url.Values, name string) bool {
	if !q.Has(name) {
		return false
	}
	v := q.Get(name)
	return v != "0" && !strings.EqualFold(v, "false")
}

// flushed writes a log to the client. Lines are buffered until Flush. A client that receives nothing for the idle time
// is disconnected.
type flushed struct {
	w    http.ResponseWriter
	c    *http.ResponseController
	idle time.Duration
	// extended is when the write deadline was moved last; zero: nothing has been written.
	extended time.Time
}

func (f *flushed) Write(b []byte) (int, error) {
	if time.Since(f.extended) > time.Second { // a log has many lines
		f.extend()
	}
	return f.w.Write(b)
}

// Flush sends what is buffered.
func (f *flushed) Flush() error {
	f.extend()
	return f.c.Flush()
}

// extend moves the write deadline.
func (f *flushed) extend() {
	f.extended = time.Now()
	until := time.Time{}
	if f.idle > 0 {
		until = f.extended.Add(f.idle)
	}
	_ = f.c.SetWriteDeadline(until)
}

// unless returns f, or nil if the stream is not requested.
func (f *flushed) unless(not bool) io.Writer {
	if not {
		return nil
	}
	return f
}
