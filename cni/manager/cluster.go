package manager

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/kube/client"
)

// readTime bounds the reading of a NetworkAttachmentDefinition, for which the start of a pod waits.
const readTime = 10 * time.Second

// cluster is what the manager needs of the API server.
type cluster interface {
	// unmasqueraded returns the destinations to which pods keep their address by default.
	unmasqueraded() []netip.Prefix
	// definition returns a NetworkAttachmentDefinition as JSON. file is where its configuration was looked for before;
	// errors mention it.
	definition(ctx context.Context, namespace, name, file string) ([]byte, error)
	// annotate sets an annotation of a pod, if it still has its UID.
	annotate(ctx context.Context, pod *corev1.Pod, key, value string) error
}

// standalone is the cluster of a node without an API server.
type standalone struct{}

func (standalone) unmasqueraded() []netip.Prefix { return nil }

func (standalone) definition(_ context.Context, _, _, file string) ([]byte, error) {
	return nil, fmt.Errorf("there is no file %s", file)
}

func (standalone) annotate(context.Context, *corev1.Pod, string, string) error { return nil }

type apiServer struct{ core rest.Interface }

func (apiServer) unmasqueraded() []netip.Prefix { return cni.Private }

func (s apiServer) definition(ctx context.Context, namespace, name, file string) ([]byte, error) {
	const path = "/apis/k8s.cni.cncf.io/v1/namespaces"
	var text []byte
	err := client.Within(ctx, readTime, func(ctx context.Context) error {
		answer := s.core.Get().AbsPath(path, namespace, "network-attachment-definitions", name).
			SetHeader("Accept", "application/json").Do(ctx)
		text, _ = answer.Raw()
		return answer.Error() // that of Raw does not say whether the API server has answered
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is neither a NetworkAttachmentDefinition %s/%s nor a file %s", namespace, name, file)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("there is no file %s, and the node may not read NetworkAttachmentDefinitions: "+
			"docs/network.md has the role it needs", file)
	case err != nil:
		return nil, fmt.Errorf("there is no file %s; get NetworkAttachmentDefinition %s/%s: %w", file, namespace, name, err)
	}
	return text, nil
}

// annotate patches the pod's status: a node may change annotations only through it.
func (s apiServer) annotate(ctx context.Context, pod *corev1.Pod, key, value string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]string{key: value}},
	})
	if err != nil {
		return err
	}
	return client.BoundedWrite(ctx, func(ctx context.Context) error {
		return s.core.Patch(types.StrategicMergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
			SubResource("status").Body(patch).Do(ctx).Error()
	})
}

// additional returns a network that a pod's annotation selects: a file of the node, or a NetworkAttachmentDefinition.
func (m *Manager) additional(ctx context.Context, s *cni.Selection) (*cni.Network, error) {
	file := filepath.Join(m.cfg.NetworksDir, s.Name+".conflist")
	n, err := cni.NetworkFile(file)
	if n != nil || err != nil {
		return n, err
	}
	text, err := m.cluster.definition(ctx, s.Namespace, s.Name, file)
	if err != nil {
		return nil, err
	}
	return cni.ParseDefinition(text)
}
