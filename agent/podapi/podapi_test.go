package podapi

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/kube/server"
)

type views []agent.PodView

func (v views) PodViews(context.Context) ([]agent.PodView, error) { return v, nil }

// TestPodOfSource checks which of several pods of one name is meant: one that a source has, even if it is being deleted
// and an older one, whose object was deleted by force, still runs.
func TestPodOfSource(t *testing.T) {
	view := func(uid types.UID, desired, deleted bool) agent.PodView {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", UID: uid}}
		if deleted {
			pod.DeletionTimestamp = &metav1.Time{}
		}
		return agent.PodView{Pod: pod, Desired: desired}
	}
	for name, all := range map[string]views{
		"forced deletion, new pod deleted": {view("want", true, true), view("old", false, false)},
		"the same, in the other order":     {view("old", false, false), view("want", true, true)},
		"deletion, new pod":                {view("old", true, true), view("want", true, false)},
		"only an old one":                  {view("want", false, true)},
	} {
		got, err := New(Config{Pods: all}).find(t.Context(), server.Container{Namespace: "default", Pod: "web-0"})
		if err != nil || got.Pod.UID != "want" {
			t.Errorf("%s: got pod %q, %v, want the other one", name, got.Pod.UID, err)
		}
	}
}

// TestSilentAgent checks that the commands do not wait for ever for an agent that hangs: they say so.
func TestSilentAgent(t *testing.T) {
	root := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(root, localSocket)) // the kernel accepts connections, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := NewClient(root)
	c.limit = time.Millisecond
	_, err = c.Node(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), ": no answer within 1ms: see its log") {
		t.Errorf("got %v, want that the agent does not answer", err)
	}
}
