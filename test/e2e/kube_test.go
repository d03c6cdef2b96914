//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/kube/client"
)

// space is the namespace of all objects that the tests create.
const space = "default"

// kubectl runs kubectl and returns its output. An error fails the test.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tb.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v%s", strings.Join(args, " "), err, agentLogTail())
	}
	return strings.TrimSpace(out)
}

// apply creates objects from YAML and deletes them when the test ends.
func apply(t *testing.T, yaml string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := tb.Kubectl(context.Background(), "delete", "-f", file, "--ignore-not-found",
			"--timeout=5m"); err != nil {
			t.Errorf("delete the objects of the test: %v%s", err, agentLogTail())
		}
	})
	kubectl(t, "apply", "-f", file)
}

// follow watches the objects of a resource, starting with those that exist, until each returns true or ctx ends. When
// the watch breaks, for example with the API server, follow opens another one.
func follow(ctx context.Context, resource string, o metav1.ListOptions, each func(watch.Event) (done bool)) error {
	namespace := space
	if resource == "nodes" {
		namespace = ""
	}
	for {
		w, err := api.Core.Get().Namespace(namespace).Resource(resource).VersionedParams(&o, client.Parameters).Watch(ctx)
		if err == nil {
			for e := range w.ResultChan() {
				if e.Type != watch.Error && each(e) {
					w.Stop()
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// named selects the object of that name. With resource version 0 the API server answers from its cache. Without it,
// the API server may first wait for a change of some object of this kind, if etcd sends no progress notifications.
func named(name string) metav1.ListOptions {
	return metav1.ListOptions{Watch: true, ResourceVersion: "0", FieldSelector: "metadata.name=" + name}
}

// labelled selects the objects with that label.
func labelled(selector string) metav1.ListOptions {
	return metav1.ListOptions{Watch: true, ResourceVersion: "0", LabelSelector: selector}
}

// waitPod watches a pod until ok returns true. After limit it fails the test and prints the pod as it was last seen.
func waitPod(t *testing.T, name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var last *corev1.Pod
	err := follow(ctx, "pods", named(name), func(e watch.Event) bool {
		last = e.Object.(*corev1.Pod)
		return e.Type != watch.Deleted && ok(last)
	})
	if err != nil {
		t.Fatalf("pod %s: want %q within %s; got %s%s", name, what, limit, describe(last), agentLogTail())
	}
	return last
}

// describe returns the metadata, status and events of a pod for failure messages.
func describe(pod *corev1.Pod) string {
	if pod == nil {
		return "no such pod"
	}
	text, _ := json.MarshalIndent(pod.Status, "", " ")
	return fmt.Sprintf("UID %s, created %s, deletionTimestamp %v, labels %v, annotations %v\n%s\nevents:\n%s",
		pod.UID, pod.CreationTimestamp, pod.DeletionTimestamp, pod.Labels, pod.Annotations, text,
		strings.Join(events(pod.UID), "\n"))
}

// waitReady waits until a pod is Ready.
func waitReady(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return waitPod(t, name, "is Ready", ready)
}

func ready(p *corev1.Pod) bool { return condition(p, corev1.PodReady) == corev1.ConditionTrue }

// condition returns the status of a condition, or "" if the pod has none of that type.
func condition(p *corev1.Pod, which corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == which {
			return c.Status
		}
	}
	return ""
}

// waitGone waits until the API has no pod of that name.
func waitGone(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := gone(ctx, name); err != nil {
		t.Fatalf("pod %s: want it deleted within %s; got %v%s", name, limit, err, agentLogTail())
	}
}

func gone(ctx context.Context, name string) error {
	for {
		pod := &corev1.Pod{}
		err := api.Core.Get().Namespace(space).Resource("pods").Name(name).Do(ctx).Into(pod)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		o := named(name)
		o.ResourceVersion = pod.ResourceVersion
		err = follow(ctx, "pods", o, func(e watch.Event) bool { return e.Type == watch.Deleted })
		if err != nil {
			return err
		}
	}
}

// getPod gets a pod from the API.
func getPod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := api.Core.Get().Namespace(space).Resource("pods").Name(name).Do(context.Background()).Into(pod); err != nil {
		t.Fatalf("get pod %s: %v", name, err)
	}
	return pod
}

// listPods lists the pods with a label.
func listPods(t *testing.T, selector string) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	err := api.Core.Get().Namespace(space).Resource("pods").
		VersionedParams(&metav1.ListOptions{LabelSelector: selector}, client.Parameters).Do(context.Background()).Into(list)
	if err != nil {
		t.Fatalf("list pods: %v", err)
	}
	return list.Items
}

// containerStatus returns the status of a container or init container, or an empty one.
func containerStatus(p *corev1.Pod, name string) corev1.ContainerStatus {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.Name == name {
			return c
		}
	}
	return corev1.ContainerStatus{}
}

// waitingFor returns a function that reports whether a container waits with that reason and all words in its message.
func waitingFor(container, reason string, words ...string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		w := containerStatus(p, container).State.Waiting
		return w != nil && w.Reason == reason && hasAll(w.Message, words)
	}
}

// waitEvent waits for an event about a pod with that reason whose message contains all words.
func waitEvent(t *testing.T, pod, reason string, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	uid := getPod(t, pod).UID
	o := metav1.ListOptions{Watch: true, FieldSelector: "reason=" + reason + ",involvedObject.uid=" + string(uid)}
	err := follow(ctx, "events", o, func(e watch.Event) bool { return hasAll(e.Object.(*corev1.Event).Message, words) })
	if err != nil {
		t.Errorf("want an event %s about pod %s with %q within %s; got\n%s", reason, pod, words, limit,
			strings.Join(events(uid), "\n"))
	}
}

// events lists the events about an object, each as "Type Reason fieldPath: message", in the order of their creation.
func events(uid types.UID) []string {
	list := &corev1.EventList{}
	err := api.Core.Get().Namespace(space).Resource("events").
		VersionedParams(&metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid)}, client.Parameters).
		Do(context.Background()).Into(list)
	if err != nil {
		return []string{err.Error()}
	}
	slices.SortStableFunc(list.Items,
		func(a, b corev1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	all := make([]string, len(list.Items))
	for i, e := range list.Items {
		all[i] = fmt.Sprintf("%s %s %s: %s", e.Type, e.Reason, e.InvolvedObject.FieldPath, e.Message)
	}
	return all
}
