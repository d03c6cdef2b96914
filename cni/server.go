package cni

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/nodelet/nodelet/cni/shim"
	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/internal/listener"
)

// podAnnotations is the capability with which containerd and CRI-O pass the annotations of a pod.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// noAddresses is the error of host-local if a range is exhausted.
const noAddresses = "no IP addresses available in range set"

// ServerConfig is what a Server needs. All fields are required.
type ServerConfig struct {
	// Socket is the path on which it listens; only root can connect.
	Socket string
	Driver *Driver
	// Own returns the node's own network, or why there is none.
	Own func() (*Network, error)
	// Additional returns a network that a pod's annotation selects.
	Additional func(ctx context.Context, s *Selection) (*Network, error)
	// Exhausted is called after an ADD that failed for lack of addresses, which is then tried once more. It releases what
	// removed sandboxes have left.
	Exhausted func(context.Context)
	// Incomplete is called after a failed ADD or DEL, which may have left something. It must not block.
	Incomplete func()
	// Attached is called after a sandbox was attached to its networks. It must not block.
	Attached func(*Record)
	// Serving is called with why the plugin cannot reach the server, nil when it can. It must not block.
	Serving func(error)
	Log     *slog.Logger
}

// Server serves the runtime's calls.
type Server struct {
	ServerConfig
	calls sync.WaitGroup
}

// NewServer returns a Server; Run makes it work.
func NewServer(c ServerConfig) *Server { return &Server{ServerConfig: c} }

// Run serves until ctx ends and all calls have finished. If its socket fails, it opens it again. A shortage of file
// descriptors is only logged: the plugin can reach the server meanwhile, and waits.
func (s *Server) Run(ctx context.Context) {
	defer s.calls.Wait()
	serving := s.changes()
	listener.Serve(ctx, func() (net.Listener, error) {
		l, err := listener.Unix(s.Socket, 0o700, 0o600)
		serving(err)
		return l, err
	}, func(l net.Listener) error {
		err := s.accept(ctx, l)
		if ctx.Err() == nil {
			serving(err)
		}
		return err
	}, func(err error, retryIn time.Duration) {
		s.Log.Error("cannot serve the CNI plugin; pods cannot get a network", "err", err, "retryIn", retryIn)
	})
}

// changes returns a function that passes the first outcome to Serving, and after that each change between success and
// failure.
func (s *Server) changes() func(error) {
	known, failing := false, false
	return func(err error) {
		if known && failing == (err != nil) {
			return
		}
		known, failing = true, err != nil
		if failing {
			err = fmt.Errorf("serve the CNI plugin: %w", err)
		}
		s.Serving(err)
	}
}

// accept takes calls until ctx ends or an error.
func (s *Server) accept(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		s.calls.Go(func() { s.serve(ctx, conn) })
	}
}

// serve answers one request. An ADD whose caller has gone is stopped and undone.
func (s *Server) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	r, err := receive(conn)
	if err != nil {
		s.Log.Warn("cannot read a call of the CNI plugin", "err", err)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		cancel(errors.New("the runtime has cancelled the call"))
	}()
	began := time.Now()
	out, err := s.answer(ctx, r)
	log := s.Log.With("verb", r.Command, "sandbox", r.ContainerID, "took", time.Since(began))
	first := byte(shim.Done)
	if err != nil {
		log.Warn("CNI call failed", "err", err)
		first, out = shim.Failed, failure(versionOf(r.Config), err)
		if r.Command == "ADD" || r.Command == "DEL" {
			s.Incomplete()
		}
	} else {
		log.Debug("CNI call succeeded")
	}
	reply := binary.BigEndian.AppendUint32(nil, uint32(1+len(out)))
	_, _ = conn.Write(append(append(reply, first), out...))
}

// receive reads a request that shim.Request.Encode has written.
func receive(conn net.Conn) (*shim.Request, error) {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	n := shim.Length(head[:])
	if n > 2*shim.MaxRequest {
		return nil, fmt.Errorf("request of %d bytes exceeds the limit", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, err
	}
	r := &shim.Request{}
	if !r.Decode(body) {
		return nil, errors.New("malformed request: lengths do not match")
	}
	return r, conn.SetReadDeadline(time.Time{})
}

func (s *Server) answer(ctx context.Context, r *shim.Request) (out []byte, err error) {
	defer func() { // untrusted input caused a panic: only this call fails
		if p := recover(); p != nil {
			err = fmt.Errorf("%s of sandbox %q panicked: %v", r.Command, r.ContainerID, p)
		}
	}()
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return nil, err
	}
	switch r.Command {
	case "ADD":
		return s.add(ctx, r)
	case "CHECK":
		return nil, s.Driver.Check(ctx, r.ContainerID)
	case "DEL":
		own, _ := s.Own() // for a sandbox without a record
		// DEL goes on if the runtime cancels it: it would have to be repeated.
		return nil, s.Driver.Detach(context.WithoutCancel(ctx), r.ContainerID, r.NetNS, unrecorded(r, own))
	}
	return nil, types.NewError(types.ErrInvalidEnvironmentVariables,
		fmt.Sprintf("CNI_COMMAND %q is not known", r.Command), "")
}

// input is the part of the runtime's configuration that differs between calls.
type input struct {
	CNIVersion    string         `json:"cniVersion"`
	RuntimeConfig map[string]any `json:"runtimeConfig"`
}

func (s *Server) add(ctx context.Context, r *shim.Request) ([]byte, error) {
	var in input
	if err := json.Unmarshal([]byte(r.Config), &in); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "read the network configuration", err.Error())
	}
	if !isNamespace(r.NetNS) {
		return nil, types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("no network namespace is at %q", r.NetNS), "")
	}
	if err := utils.ValidateInterfaceName(r.IfName); err != nil {
		return nil, err
	}
	rec := newRecord(r)
	wanted, err := s.wanted(ctx, r, &in, rec.Pod)
	if err != nil {
		return nil, err
	}
	err = s.Driver.Attach(ctx, rec, wanted)
	if err != nil && ctx.Err() == nil && strings.Contains(err.Error(), noAddresses) {
		s.Exhausted(ctx)
		err = s.Driver.Attach(ctx, rec, wanted)
	}
	if err != nil {
		return nil, err
	}
	out, err := convert(rec.Attachments[0].Result, in.CNIVersion)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Driver.Detach(context.WithoutCancel(ctx), r.ContainerID, r.NetNS, nil))
	}
	s.Attached(rec)
	return out, nil
}

// wanted returns the networks that a sandbox should be attached to: the node's own or the default network of the pod,
// and those of the pod's annotation.
func (s *Server) wanted(ctx context.Context, r *shim.Request, in *input, pod Pod) ([]Wanted, error) {
	annotations, _ := in.RuntimeConfig[podAnnotations].(map[string]any)
	text, _ := annotations[defaultNetworkAnnotation].(string)
	instead, err := parseDefaultNetwork(text, pod.Namespace)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	text, _ = annotations[networksAnnotation].(string)
	selections, err := parseSelections(text, pod.Namespace)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	first := Wanted{IfName: r.IfName, Capabilities: in.RuntimeConfig}
	if instead == nil {
		if first.Network, err = s.Own(); err != nil {
			return nil, types.NewError(types.ErrTryAgainLater, "the node's network is not ready: "+err.Error(), "")
		}
	} else if first, err = s.selected(ctx, instead, defaultNetworkAnnotation); err != nil {
		return nil, err
	} else {
		first.IfName = r.IfName
		maps.Copy(first.Capabilities, in.RuntimeConfig) // host ports belong to the first network, whichever it is
		maps.Copy(first.Capabilities, instead.capabilities())
	}
	all := []Wanted{first}
	for i := range selections {
		w, err := s.selected(ctx, &selections[i], networksAnnotation)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// selected returns a network that an annotation of the pod selects.
func (s *Server) selected(ctx context.Context, sel *Selection, annotation string) (Wanted, error) {
	n, err := s.Additional(ctx, sel)
	if err == nil {
		err = sel.taken(n)
	}
	if err != nil {
		return Wanted{}, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("annotation %s: network %s: %v", annotation, sel.label(), err), "")
	}
	return Wanted{
		Network:      n,
		IfName:       sel.IfName,
		Label:        sel.label(),
		Capabilities: sel.capabilities(),
		Args:         sel.CNIArgs,
	}, nil
}

func newRecord(r *shim.Request) *Record {
	parent, _ := strconv.Atoi(r.Parent) // 0 for invalid text: no process
	rec := &Record{
		Sandbox: r.ContainerID,
		NetNS:   r.NetNS,
		Boot:    bootID(),
		Runtime: processOf(parent),
		Began:   time.Now(),
		Uptime:  machine.Uptime(),
	}
	for pair := range strings.SplitSeq(r.Args, ";") {
		k, v, ok := strings.Cut(pair, "=")
		if !ok {
			continue
		}
		rec.Args = append(rec.Args, [2]string{k, v})
		switch k {
		case "K8S_POD_NAMESPACE":
			rec.Pod.Namespace = v
		case "K8S_POD_NAME":
			rec.Pod.Name = v
		case "K8S_POD_UID":
			rec.Pod.UID = v
		}
	}
	return rec
}

// unrecorded returns a record for a sandbox without one: attached to the node's own network.
func unrecorded(r *shim.Request, own *Network) *Record {
	if own == nil {
		return nil
	}
	config, err := flatten(own, nil)
	if err != nil {
		return nil
	}
	var in input
	_ = json.Unmarshal([]byte(r.Config), &in)
	rec := newRecord(r)
	rec.Attachments = []Attachment{{Network: own.Name, IfName: r.IfName, Config: config, Capabilities: in.RuntimeConfig}}
	return rec
}

// parseResult parses a result of any version.
func parseResult(text []byte) (types.Result, error) {
	if err := checkResult(text); err != nil {
		return nil, err
	}
	return create.CreateFromBytes(text)
}

// convert converts a result to the version that the runtime requests.
func convert(result json.RawMessage, version string) ([]byte, error) {
	r, err := parseResult(result)
	if err != nil {
		return nil, err
	}
	if r, err = r.GetAsVersion(version); err != nil {
		return nil, fmt.Errorf("convert the result to CNI version %q: %w", version, err)
	}
	var b bytes.Buffer
	err = r.PrintTo(&b)
	return b.Bytes(), err
}

// failure encodes an error as the CNI specification demands.
func failure(version string, err error) []byte {
	var b bytes.Buffer
	code := types.ErrInternal
	if said, ok := errors.AsType[*types.Error](err); ok && said.Code != 0 {
		code = said.Code
	}
	// containerd treats a failed DEL with these words in its message as a success, and the network would leak.
	message := strings.ReplaceAll(err.Error(), "not found", "missing")
	_ = json.NewEncoder(&b).Encode(map[string]any{"cniVersion": cmp.Or(version, "1.0.0"), "code": code, "msg": message})
	return b.Bytes()
}

func versionOf(config string) string {
	var in input
	_ = json.Unmarshal([]byte(config), &in)
	return in.CNIVersion
}
