package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri/images"
)

// minStop is the shortest time between SIGTERM and SIGKILL, however long the preStop hook took.
const minStop = 2 * time.Second

// ensureImage makes the image of a container or of an image volume present by its pull policy.
func (t *task) ensureImage(ctx context.Context, s podstate.EnsureImage) (images.Image, error) {
	got, err := t.backends.Images.Ensure(ctx, images.Request{
		Image:   s.Image,
		Policy:  s.Policy,
		Pod:     t.pod,
		Secrets: t.pullSecrets,
		Sandbox: func() (*runtimeapi.PodSandboxConfig, error) { return t.sandboxConfig(0) },
		Event:   func(reason, message string) { t.imageEvent(s, reason, message) },
	})
	if err == nil && got.Pulled {
		t.backends.Pulled()
		t.backends.Metrics.Pulled(got.Size, got.Took)
	}
	return got.Image, err
}

// pullSecrets reads the pod's pull secrets. Missing ones are an event: the image may be public.
func (t *task) pullSecrets(ctx context.Context) []*corev1.Secret {
	secrets, err := t.backends.Objects(t.pod).PullSecrets(ctx, t.pod)
	if err != nil {
		t.log.Info("cannot read all pull secrets", "err", err)
		t.event(corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf(
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.",
			strings.Join(missingSecrets(t.pod, secrets), ", ")))
	}
	return secrets
}

// missingSecrets returns the names of the pull secrets that were not found.
func missingSecrets(pod *corev1.Pod, found []*corev1.Secret) (names []string) {
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name != "" && !slices.ContainsFunc(found, func(s *corev1.Secret) bool { return s.Name == ref.Name }) {
			names = append(names, ref.Name)
		}
	}
	return names
}

// imageEvent records an event about an image: of the container that needs it, or of the pod for an image volume.
func (t *task) imageEvent(s podstate.EnsureImage, reason, message string) {
	if s.Volume != "" {
		t.event(corev1.EventTypeNormal, reason, message)
		return
	}
	t.containerEvent(s.Container, corev1.EventTypeNormal, reason, message)
}

// createContainer creates an instance of a container.
func (t *task) createContainer(ctx context.Context, s podstate.CreateContainer) error {
	in, err := t.containerInput(ctx, s)
	if err != nil {
		return err
	}
	cfg, err := spec.Container(in)
	if err != nil {
		return err
	}
	sandbox, err := t.sandboxConfig(t.sandbox.Attempt)
	if err != nil {
		return err
	}
	if err := t.containerFiles(s); err != nil {
		return err
	}
	if _, err := t.backends.Runtime.CreateContainer(ctx, s.SandboxID, cfg, sandbox); err != nil {
		return err
	}
	t.containerEvent(s.Name, corev1.EventTypeNormal, "Created", "Container created")
	return nil
}

func (t *task) startContainer(ctx context.Context, s podstate.StartContainer) error {
	if err := t.backends.Runtime.StartContainer(ctx, s.ID); err != nil {
		return err
	}
	t.containerEvent(s.Name, corev1.EventTypeNormal, "Started", "Container started")
	t.linkLog(s)
	return nil
}

// linkLog links the log of a container for log collectors; the name of the link identifies the container.
func (t *task) linkLog(s podstate.StartContainer) {
	c := t.instance(s.ID)
	if c == nil {
		return
	}
	if err := t.backends.Logs.Link(t.logPath(s.Name, c.Attempt), t.linkName(s.Name, s.ID)); err != nil {
		t.log.Warn("cannot link the log of a container for log collectors", "container", s.Name, "err", err)
	}
}

// logPath returns the path of the log of one instance.
func (t *task) logPath(container string, attempt uint32) string {
	dir := t.backends.Node().PodLogDir(t.pod.Namespace, t.pod.Name, t.pod.UID)
	return filepath.Join(dir, spec.LogPath(container, attempt))
}

// linkName returns the name of the link to the log of one instance. A name that is too long for a file is cut, as the
// kubelet does.
func (t *task) linkName(container, id string) string {
	const end = ".log"
	name := fmt.Sprintf("%s_%s_%s-%s", t.pod.Name, t.pod.Namespace, container, id)
	return name[:min(len(name), unix.NAME_MAX-len(end))] + end
}

func (t *task) instance(id string) *podstate.Container {
	for i := range t.instances {
		if t.instances[i].ID == id {
			return &t.instances[i]
		}
	}
	return nil
}
