package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// list serves the pods that read returns, as a PodList. It encodes pod by pod, so that it needs the memory of one only.
func (s *Server) list(read func(Agent, context.Context) ([]*corev1.Pod, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, _ place) {
		all, err := read(s.cfg.Agent, r.Context())
		if err != nil {
			s.fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, err = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[`)
		enc := json.NewEncoder(w)
		for i, pod := range all {
			if i > 0 && err == nil {
				_, err = io.WriteString(w, ",")
			}
			if err == nil {
				err = enc.Encode(pod)
			}
		}
		if err == nil {
			_, _ = io.WriteString(w, "]}\n")
		}
	}
}

// allocated returns the pods of /allocatedPods, with empty statuses.
func allocated(a Agent, ctx context.Context) ([]*corev1.Pod, error) {
	all, err := a.Allocated(ctx)
	for i, pod := range all {
		bare := *pod
		bare.Status = corev1.PodStatus{}
		all[i] = &bare
	}
	return all, err
}

// serveAllocatedPod serves /allocatedPods/namespace/pod[/uid].
func (s *Server) serveAllocatedPod(w http.ResponseWriter, r *http.Request, at place) {
	of, err := at.pods()
	var all []*corev1.Pod
	if err == nil {
		all, err = allocated(s.cfg.Agent, r.Context())
	}
	i := slices.IndexFunc(all, func(p *corev1.Pod) bool {
		return p.Namespace == of.Namespace && p.Name == of.Pod && (of.UID == "" || p.UID == of.UID)
	})
	if err == nil && i < 0 {
		err = NotFound("pod not found")
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	pod := *all[i]
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&pod)
}

// serveRun serves POST /run/namespace/pod[/uid]/container?cmd=COMMAND, which answers with the output of the command.
func (s *Server) serveRun(w http.ResponseWriter, r *http.Request, at place) {
	in, err := at.named()
	var out []byte
	if err == nil {
		out, err = s.cfg.Agent.Run(r.Context(), in, strings.Split(r.URL.Query().Get("cmd"), " "))
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(out)
}

func (s *Server) serveCheckpoint(w http.ResponseWriter, r *http.Request, at place) {
	of, err := at.named()
	var timeout int64
	if all := r.URL.Query()["timeout"]; err == nil && len(all) > 0 {
		if timeout, err = strconv.ParseInt(all[len(all)-1], 10, 32); err != nil || timeout < 0 {
			err = NotFound("cannot parse value of timeout parameter")
		}
	}
	file := ""
	if err == nil {
		file, err = s.cfg.Agent.Checkpoint(r.Context(), of, time.Duration(timeout)*time.Second)
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string][]string{"items": {file}})
}

// named returns the container that a path names.
func (p place) named() (Container, error) {
	c, err := p.pods()
	if err == nil && p.container == "" {
		err = Errorf(http.StatusBadRequest, "the path must name a container")
	}
	return c, err
}

// pods returns the pod that a path names, with the container if there is one.
func (p place) pods() (Container, error) {
	if p.namespace == "" || p.pod == "" {
		return Container{}, NotFound("the path must name namespace and pod")
	}
	return Container{Namespace: p.namespace, Pod: p.pod, UID: types.UID(p.uid), Name: p.container}, nil
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if status, ok := errors.AsType[*Error](err); ok {
		code = status.Code
		if status.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(status.RetryAfter.Seconds())))
		}
	}
	s.log.Debug("request to the kubelet API failed", "code", code, "err", err)
	answerError(w, code, err.Error())
}

// answerError answers with a text alone. As with the kubelet no line feed follows it: the API server makes the body the
// message of its own answer to kubectl logs.
func answerError(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}
