package cni

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/nodelet/nodelet/cni/shim"
)

// podAnnotations is the capability by which containerd and CRI-O hand over the pod's annotations.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// noAddresses is what host-local says when a range has run out.
const noAddresses = "no IP addresses available in range set"

// codeNotAvailable is STATUS's "the plugin cannot serve ADD"; codeInternal is any other failure.
const (
	codeNotAvailable = 50
	codeInternal     = 999
)

// ServerConfig is what a Server needs.
type ServerConfig struct {
	// Socket is where it listens; only root can reach it.
	Socket string
	Driver *Driver
	// Own gives the node's own network, or says why there is none.
	Own func() (*Network, error)
	// Additional finds a network that a pod's annotation names.
	Additional func(ctx context.Context, s *Selection) (*Network, error)
	// Failed is told of an ADD that failed: something may be left of it. It gives back what can be given back; then, where
	// the node had run out of addresses, the ADD is tried once more.
	Failed func(context.Context)
	// Attached is told of a sandbox that has just been attached to its networks.
	Attached func(*Record)
	Log      *slog.Logger
}

// Server takes the runtime's calls.
type Server struct {
	ServerConfig
	calls sync.WaitGroup
}

// NewServer makes a server.
func NewServer(c ServerConfig) *Server { return &Server{ServerConfig: c} }

// Run serves until ctx ends and the calls under way are done.
func (s *Server) Run(ctx context.Context) error {
	listener, err := listen(s.Socket)
	if err != nil {
		return fmt.Errorf("serve CNI: %w", err)
	}
	return s.accept(ctx, listener)
}

func (s *Server) accept(ctx context.Context, listener net.Listener) error {
	defer s.calls.Wait()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve CNI: %w", err)
		}
		s.calls.Go(func() { s.serve(ctx, conn) })
	}
}

func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(socket, 0o600)
}

// serve answers one request. An ADD that nobody waits for any more is stopped, and undone.
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
		cancel(errors.New("the runtime waits no longer"))
	}()
	began := time.Now()
	out, err := s.answer(ctx, r)
	log := s.Log.With("verb", r.Command, "sandbox", r.ContainerID, "took", time.Since(began))
	first := byte(shim.Done)
	if err != nil {
		log.Warn("CNI call failed", "err", err)
		first, out = shim.Failed, failure(versionOf(r.Config), err)
	} else if r.Command != "STATUS" {
		log.Debug("CNI call done")
	}
	reply := binary.BigEndian.AppendUint32(nil, uint32(1+len(out)))
	_, _ = conn.Write(append(append(reply, first), out...))
}

// receive reads a request, as shim.Request.Encode writes it.
func receive(conn net.Conn) (*shim.Request, error) {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	n := shim.Length(head[:])
	if n > 2*shim.MaxRequest {
		return nil, fmt.Errorf("it would have %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, err
	}
	r := &shim.Request{}
	if !r.Decode(body) {
		return nil, errors.New("its lengths do not fit")
	}
	return r, conn.SetReadDeadline(time.Time{})
}

func (s *Server) answer(ctx context.Context, r *shim.Request) (out []byte, err error) {
	defer func() { // a stranger's words led somewhere unforeseen: this call fails, the agent goes on
		if p := recover(); p != nil {
			err = fmt.Errorf("%s of sandbox %q ended in a panic: %v", r.Command, r.ContainerID, p)
		}
	}()
	if r.Command == "ADD" || r.Command == "CHECK" || r.Command == "DEL" {
		if err := utils.ValidateContainerID(r.ContainerID); err != nil {
			return nil, err
		}
	}
	switch r.Command {
	case "ADD":
		return s.add(ctx, r)
	case "CHECK":
		return nil, s.Driver.Check(ctx, r.ContainerID)
	case "DEL":
		own, _ := s.Own() // for a sandbox without a record
		// What was begun goes on though the runtime gives up: it would only have to be done again.
		return nil, s.Driver.Detach(context.WithoutCancel(ctx), r.ContainerID, r.NetNS, unrecorded(r, own))
	case "STATUS":
		return nil, s.status(ctx)
	case "GC":
		return nil, s.gc(ctx, r)
	}
	return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_COMMAND %q is not known", r.Command), "")
}

// input is the part of the runtime's configuration that changes from call to call.
type input struct {
	CNIVersion       string               `json:"cniVersion"`
	RuntimeConfig    map[string]any       `json:"runtimeConfig"`
	ValidAttachments []types.GCAttachment `json:"cni.dev/valid-attachments"`
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
	if err != nil && s.Failed != nil && ctx.Err() == nil {
		s.Failed(ctx)
		if strings.Contains(err.Error(), noAddresses) {
			err = s.Driver.Attach(ctx, rec, wanted)
		}
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
	if s.Attached != nil {
		s.Attached(rec)
	}
	return out, nil
}

// wanted are the networks that a sandbox is to be attached to: the node's own or the one that the pod wants instead,
// and those of the pod's annotation.
func (s *Server) wanted(ctx context.Context, r *shim.Request, in *input, pod Pod) ([]Wanted, error) {
	annotations, _ := in.RuntimeConfig[podAnnotations].(map[string]any)
	text, _ := annotations[DefaultNetworkAnnotation].(string)
	instead, err := ParseDefaultNetwork(text)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	text, _ = annotations[NetworksAnnotation].(string)
	selections, err := ParseSelections(text, pod.Namespace)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	first := Wanted{IfName: r.IfName, Capabilities: in.RuntimeConfig}
	if instead == nil {
		if first.Network, err = s.Own(); err != nil {
			return nil, types.NewError(types.ErrTryAgainLater, "the node's network is not ready: "+err.Error(), "")
		}
	} else if first, err = s.selected(ctx, instead, DefaultNetworkAnnotation); err != nil {
		return nil, err
	} else {
		first.IfName = r.IfName
		maps.Copy(first.Capabilities, in.RuntimeConfig) // host ports are asked of a pod's first network, whichever it is
		maps.Copy(first.Capabilities, instead.capabilities())
	}
	all := []Wanted{first}
	for i := range selections {
		w, err := s.selected(ctx, &selections[i], NetworksAnnotation)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// selected finds a network that an annotation of the pod names.
func (s *Server) selected(ctx context.Context, sel *Selection, annotation string) (Wanted, error) {
	n, err := s.Additional(ctx, sel)
	if err == nil {
		err = sel.taken(n)
	}
	if err != nil {
		return Wanted{}, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("annotation %s: network %s: %v", annotation, sel.label(), err), "")
	}
	return Wanted{Network: n, IfName: sel.IfName, Label: sel.label(), Capabilities: sel.capabilities(), Args: sel.CNIArgs}, nil
}

func (s *Server) status(ctx context.Context) error {
	own, err := s.Own()
	if err == nil {
		err = s.Driver.Status(ctx, own)
	}
	if err == nil {
		return nil
	}
	var said *types.Error
	if errors.As(err, &said) && said.Code != 0 {
		return said
	}
	return types.NewError(codeNotAvailable, err.Error(), "")
}

// gc detaches what the runtime does not know, and tells the plugins.
func (s *Server) gc(ctx context.Context, r *shim.Request) error {
	var in input
	if err := json.Unmarshal([]byte(r.Config), &in); err != nil {
		return types.NewError(types.ErrDecodingFailure, "read the network configuration", err.Error())
	}
	valid := map[string]bool{}
	for _, a := range in.ValidAttachments {
		valid[a.ContainerID] = true
	}
	records, err := s.Driver.Records()
	errs := []error{err}
	var kept []types.GCAttachment
	for _, rec := range records {
		if !valid[rec.Sandbox] && rec.Whole {
			errs = append(errs, s.Driver.Detach(ctx, rec.Sandbox, "", nil))
			continue
		}
		for _, a := range rec.Attachments {
			kept = append(kept, types.GCAttachment{ContainerID: rec.Sandbox, IfName: a.IfName})
		}
	}
	if own, err := s.Own(); err == nil {
		errs = append(errs, s.Driver.GC(ctx, own, kept))
	}
	return errors.Join(errs...)
}

func atoi(text string) int {
	n, _ := strconv.Atoi(text) // what is no number is no process
	return n
}

func newRecord(r *shim.Request) *Record {
	rec := &Record{Sandbox: r.ContainerID, NetNS: r.NetNS, Boot: BootID(), Runtime: processOf(atoi(r.Parent)), Began: time.Now()}
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

// unrecorded is what is taken back from a sandbox without a record: whatever the node's own network may have given it.
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

// convert writes a result in the version that the runtime asks for.
func convert(result json.RawMessage, version string) ([]byte, error) {
	r, err := create.CreateFromBytes(result)
	if err != nil {
		return nil, err
	}
	if r, err = r.GetAsVersion(version); err != nil {
		return nil, fmt.Errorf("write the result in version %q of CNI: %w", version, err)
	}
	var b bytes.Buffer
	err = r.PrintTo(&b)
	return b.Bytes(), err
}

// failure writes an error in the form of the CNI specification.
func failure(version string, err error) []byte {
	var b bytes.Buffer
	code, said := uint(codeInternal), (*types.Error)(nil)
	if errors.As(err, &said) && said.Code != 0 {
		code = said.Code
	}
	// containerd takes a failed DEL whose message holds these words for a success, and the network would leak.
	message := strings.ReplaceAll(err.Error(), "not found", "nowhere to be seen")
	if version == "" {
		version = "1.0.0"
	}
	_ = json.NewEncoder(&b).Encode(map[string]any{"cniVersion": version, "code": code, "msg": message})
	return b.Bytes()
}

func versionOf(config string) string {
	var in input
	_ = json.Unmarshal([]byte(config), &in)
	return in.CNIVersion
}
