package server

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serveLogs is GET /containerLogs/namespace/pod/container with the options of PodLogOptions as query.
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
	out := &flushed{w: w, c: http.NewResponseController(w), idle: s.cfg.StreamIdle}
	stdout, stderr := out.unless(*o.Stream == corev1.LogStreamStderr), out.unless(*o.Stream == corev1.LogStreamStdout)
	err = s.cfg.Agent.Logs(r.Context(), of, o, stdout, stderr)
	switch {
	case err == nil || r.Context().Err() != nil:
	case out.began: // there is no other way left to tell
		_, _ = out.Write([]byte(err.Error() + "\n"))
	default:
		s.failLog(w, err)
	}
}

// failLog tells of logs that cannot be had as 400, as the kubelet does, unless the error knows better.
func (s *Server) failLog(w http.ResponseWriter, err error) {
	var told *Error
	if !errors.As(err, &told) {
		err = Errorf(http.StatusBadRequest, "%v", err)
	}
	s.fail(w, err)
}

// logOptions reads the query of a log request and refuses what the API server would refuse (PodLogOptions).
func logOptions(q url.Values) (*corev1.PodLogOptions, error) {
	o := &corev1.PodLogOptions{Container: q.Get("container")}
	all := corev1.LogStreamAll
	o.Stream = &all
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
			if err != nil || v < n.least {
				return nil, bad(name)
			}
			*n.into = &v
		}
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || o.SinceSeconds != nil {
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

// boolean reads a flag as the API does: there without a value is true, and so is all but "0" and "false".
func boolean(q url.Values, name string) bool {
	if !q.Has(name) {
		return false
	}
	v := q.Get(name)
	return v != "0" && v != "false"
}

// flushed is where a log goes. Lines gather until the reader of the log has no more for now and flushes. Somebody who
// takes nothing for as long as a stream may be idle is given up.
type flushed struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	idle  time.Duration
	began bool
}

func (f *flushed) Write(b []byte) (int, error) {
	if !f.began {
		f.began = true
		f.patience()
	}
	return f.w.Write(b)
}

// Flush sends on what has gathered.
func (f *flushed) Flush() error {
	f.patience()
	return f.c.Flush()
}

// patience gives the other side time again.
func (f *flushed) patience() {
	until := time.Time{}
	if f.idle > 0 {
		until = time.Now().Add(f.idle)
	}
	_ = f.c.SetWriteDeadline(until)
}

// unless is the writer, or a nil that tells that the stream is not wanted.
func (f *flushed) unless(not bool) io.Writer {
	if not {
		return nil
	}
	return f
}
