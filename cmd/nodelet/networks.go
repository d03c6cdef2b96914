package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/status"
)

// additional finds a network that a pod's annotation names: a NetworkAttachmentDefinition, or a file of the node.
func (w *network) additional(ctx context.Context, s *cni.Selection) (*cni.Network, error) {
	file := filepath.Join(w.cfg.NetworksDir, s.Name+".conflist")
	n, err := cni.NetworkFile(file)
	if n != nil || err != nil {
		return n, err
	}
	if w.n.api == nil {
		return nil, fmt.Errorf("there is no file %s", file)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	text, err := w.n.api.Core.Get().AbsPath("/apis/k8s.cni.cncf.io/v1/namespaces", s.Namespace, "network-attachment-definitions", s.Name).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is neither a NetworkAttachmentDefinition %s/%s nor a file %s", s.Namespace, s.Name, file)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("there is no file %s, and the node may not read NetworkAttachmentDefinitions: docs/network.md has the role it needs", file)
	case err != nil:
		return nil, fmt.Errorf("get NetworkAttachmentDefinition %s/%s: %w", s.Namespace, s.Name, err)
	}
	return cni.ParseDefinition(text)
}

// attached tells people what networks a pod has, where it has asked for others than the node's own.
func (w *network) attached(rec *cni.Record) {
	if w.n.api == nil || len(rec.Attachments) < 2 && rec.Attachments[0].Label == "" {
		return
	}
	go func() {
		if err := w.annotate(rec); err != nil {
			ref := status.Ref{Kind: "Pod", Namespace: rec.Pod.Namespace, Name: rec.Pod.Name, UID: types.UID(rec.Pod.UID)}
			w.n.recorder.Event(ref, corev1.EventTypeWarning, "NetworkStatusFailed",
				fmt.Sprintf("cannot write the annotation %s: %v", cni.StatusAnnotation, err))
		}
	}()
}

// annotate writes the annotation of networks' status. A node may change annotations through the pod's status.
func (w *network) annotate(rec *cni.Record) error {
	text, err := rec.StatusText()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": rec.Pod.UID, "annotations": map[string]string{cni.StatusAnnotation: text}}})
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(context.Background(), client.RequestTimeout)
		err = w.n.api.Core.Patch(types.StrategicMergePatchType).Namespace(rec.Pod.Namespace).Resource("pods").Name(rec.Pod.Name).
			SubResource("status").Body(patch).Do(ctx).Error()
		cancel()
		var refused apierrors.APIStatus
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or another pod of that name
			return nil
		}
		if errors.As(err, &refused) && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) || try == 5 {
			return err
		}
		time.Sleep(time.Second << try)
	}
}
