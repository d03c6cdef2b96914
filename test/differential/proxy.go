package main

import (
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/criproxy"
)

// call is one call to the runtime that changes something.
type call struct {
	// UID is the pod's, Container the container's name; empty for the sandbox.
	UID, Container string
	// Text is the call with the arguments that are compared. Config is the configuration of a sandbox or container as
	// JSON.
	Text, Config string
}

// proxy runs between an agent and the runtime and records the calls that change something.
type proxy struct {
	through *criproxy.Proxy
	// starting counts the calls under way that start something.
	starting atomic.Int32

	mu    sync.Mutex
	calls []call
	// owner has the pod and container of each container or sandbox ID; its Text is the attempt.
	owner map[string]call
}

func startProxy(socket, runtime string) (*proxy, error) {
	p := &proxy{owner: map[string]call{}}
	var err error
	if p.through, err = criproxy.Start(socket, runtime, p.handle); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *proxy) close() { p.through.Close() }

// handle forwards one call: a request, and any number of responses.
func (p *proxy) handle(to *criproxy.Proxy, in grpc.ServerStream, method string, request []byte) error {
	switch method {
	case service + "RunPodSandbox", service + "CreateContainer", service + "StartContainer":
		p.starting.Add(1)
		defer p.starting.Add(-1)
	}
	before := p.before(method, request)
	return to.Pass(in.Context(), method, request, func(answer []byte) error {
		p.after(before, answer)
		return in.SendMsg(&answer)
	})
}

const service = "/runtime.v1.RuntimeService/"

// before records a call. If the call creates something, it returns the call for after, with the pod's UID.
func (p *proxy) before(method string, request []byte) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch method {
	case service + "RunPodSandbox":
		return p.runSandbox(request)
	case service + "CreateContainer":
		return p.createContainer(request)
	case service + "StartContainer":
		m := decode(request, &runtimeapi.StartContainerRequest{})
		p.note(m.ContainerId, "start %s", "")
	case service + "StopContainer":
		m := decode(request, &runtimeapi.StopContainerRequest{})
		p.note(m.ContainerId, "stop %s", fmt.Sprintf(" within %ds", m.Timeout))
	case service + "StopPodSandbox":
		m := decode(request, &runtimeapi.StopPodSandboxRequest{})
		p.note(m.PodSandboxId, "stop sandbox %s", "")
	case service + "RemovePodSandbox":
		m := decode(request, &runtimeapi.RemovePodSandboxRequest{})
		p.note(m.PodSandboxId, "remove sandbox %s", "")
	case service + "ExecSync":
		m := decode(request, &runtimeapi.ExecSyncRequest{})
		p.note(m.ContainerId, "exec in %s", fmt.Sprintf(" %q within %ds", m.Cmd, m.Timeout))
	}
	return nil
}

func decode[M proto.Message](request []byte, m M) M {
	_ = proto.Unmarshal(request, m) // an invalid message leaves its fields empty
	return m
}

func (p *proxy) note(id, format, more string) {
	o := p.owner[id]
	p.calls = append(p.calls, call{UID: o.UID, Container: o.Container, Text: fmt.Sprintf(format, o.Text) + more})
}

func (p *proxy) runSandbox(request []byte) *call {
	m := decode(request, &runtimeapi.RunPodSandboxRequest{})
	meta := m.GetConfig().GetMetadata()
	c := call{
		UID:    meta.GetUid(),
		Text:   fmt.Sprintf("run sandbox %d handler=%q", meta.GetAttempt(), m.RuntimeHandler),
		Config: configText(m.Config),
	}
	p.calls = append(p.calls, c)
	return &call{UID: c.UID, Text: fmt.Sprint(meta.GetAttempt())}
}

func (p *proxy) createContainer(request []byte) *call {
	m := decode(request, &runtimeapi.CreateContainerRequest{})
	meta := m.GetConfig().GetMetadata()
	c := call{UID: m.GetSandboxConfig().GetMetadata().GetUid(), Container: meta.GetName(), Config: configText(m.Config)}
	c.Text = fmt.Sprintf("create %d", meta.GetAttempt())
	p.calls = append(p.calls, c)
	return &call{UID: c.UID, Container: c.Container, Text: fmt.Sprint(meta.GetAttempt())}
}

func configText(m proto.Message) string {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// after records the ID of a created sandbox or container: the first field of both responses.
func (p *proxy) after(made *call, answer []byte) {
	if made == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if made.Container == "" {
		p.owner[decode(answer, &runtimeapi.RunPodSandboxResponse{}).PodSandboxId] = *made
	} else {
		p.owner[decode(answer, &runtimeapi.CreateContainerResponse{}).ContainerId] = *made
	}
}

// of returns the calls for one pod.
func (p *proxy) of(uid string) (all []call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c.UID == uid {
			all = append(all, c)
		}
	}
	return all
}
