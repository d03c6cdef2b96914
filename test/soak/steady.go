package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const configName = "soak"

// steadyPods are there from the beginning to the end; no fault concerns them.
type steadyPods struct {
	// uids are the UIDs that their sandboxes carry, by name of the pod.
	uids map[string]types.UID
	// instances are their sandboxes and containers as the runtime has them.
	instances []string
	// tokens are files that they hold in an emptyDir, with their content.
	tokens map[string]string
}

// startSteadyPods starts them and waits until they are Ready.
func startSteadyPods(ctx context.Context, s *soak) (*steadyPods, error) {
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: configName},
		Data:       map[string]string{"SOAK": "value"},
	}
	err := s.api.Core.Post().Namespace(namespace).Resource("configmaps").Body(config).Do(ctx).Error()
	if err != nil {
		return nil, err
	}
	manifest := filepath.Join(s.node.ManifestDir, "steady-static.yaml")
	if err := os.WriteFile(manifest, []byte(staticManifest), 0o644); err != nil {
		return nil, err
	}
	steady := &steadyPods{uids: map[string]types.UID{}, tokens: map[string]string{}}
	names := []string{"steady-static-" + s.node.Name}
	for _, k := range kinds {
		if k.expect != isReady {
			continue
		}
		p := k.pod(s, "steady-"+strings.ReplaceAll(k.name, " ", "-"))
		p.Labels["soak"] = "steady"
		if _, err := s.create(ctx, p); err != nil {
			return nil, err
		}
		names = append(names, p.Name)
	}
	for _, name := range names {
		if problem := steady.await(ctx, s, name); problem != "" {
			return nil, fmt.Errorf("pod %s did not become Ready: %s", name, problem)
		}
	}
	steady.instances, err = steady.list(ctx, s)
	return steady, err
}

const staticManifest = `
apiVersion: v1
kind: Pod
metadata: {name: steady-static, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: "registry.k8s.io/pause:3.10"}
`

// await waits until a pod is Ready, and leaves a token in its emptyDir.
func (st *steadyPods) await(ctx context.Context, s *soak, name string) string {
	problem := within(ctx, 2*time.Minute, func() string {
		p, err := s.get(ctx, name)
		if err != nil {
			return err.Error()
		}
		if !isReady.holds(p) {
			return describe(p)
		}
		st.uids[name] = p.UID
		if own := p.Annotations["kubernetes.io/config.hash"]; own != "" {
			st.uids[name] = types.UID(own)
		}
		return ""
	})
	if problem != "" || strings.HasPrefix(name, "steady-static") {
		return problem
	}
	file := filepath.Join(s.node.RootDir, "pods", string(st.uids[name]), "volumes/kubernetes.io~empty-dir/scratch/token")
	st.tokens[file] = name
	if err := os.WriteFile(file, []byte(name), 0o644); err != nil {
		return err.Error()
	}
	return ""
}

// list lists their sandboxes and containers with their states, from the runtime itself.
func (st *steadyPods) list(ctx context.Context, s *soak) (all []string, err error) {
	names := map[string]string{}
	for name, uid := range st.uids {
		names[string(uid)] = name
	}
	client, hangUp, err := s.node.Runtime.CRI()
	if err != nil {
		return nil, err
	}
	defer hangUp()
	sandboxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	for _, b := range sandboxes.Items {
		if pod := names[b.Metadata.GetUid()]; pod != "" {
			all = append(all, fmt.Sprintf("%s: sandbox %s %s", pod, b.Id, b.State))
		}
	}
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	for _, c := range containers.Containers {
		if pod := names[c.Labels["io.kubernetes.pod.uid"]]; pod != "" {
			all = append(all, fmt.Sprintf("%s: container %s %s %s", pod, c.Metadata.GetName(), c.Id, c.State))
		}
	}
	slices.Sort(all)
	return all, nil
}
