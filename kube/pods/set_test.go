package pods

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// podOf makes a pod as a source delivers it.
func podOf(source Source, name string, uid types.UID) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid,
		Annotations: map[string]string{podutil.AnnotationSource: string(source)}},
		Spec: corev1.PodSpec{NodeName: "n1"}}
	if source != SourceAPI {
		p.Annotations[podutil.AnnotationHash] = string(uid)
	}
	return p
}

// mirrorFor makes the mirror pod of a static pod with hash.
func mirrorFor(name, hash string) *corev1.Pod {
	p := podOf(SourceAPI, name, types.UID("mirror-of-"+hash))
	p.Annotations[podutil.AnnotationMirror] = hash
	return p
}

func TestMerge(t *testing.T) {
	api := delivery{source: SourceAPI, synced: true,
		pods:    []*corev1.Pod{podOf(SourceAPI, "a", "1"), podOf(SourceAPI, "a", "2"), podOf(SourceAPI, "c", "3")},
		mirrors: []*corev1.Pod{mirrorFor("s", "5"), mirrorFor("t", "old")}}
	files := delivery{source: SourceFile, synced: true,
		pods: []*corev1.Pod{podOf(SourceFile, "s", "5"), podOf(SourceFile, "t", "6"), podOf(SourceFile, "u", "3")}}
	web := delivery{source: SourceHTTP, synced: true, pods: []*corev1.Pod{podOf(SourceHTTP, "s", "7")}}

	s := merge([]delivery{api, files, web})
	var uids []string
	for _, uid := range []types.UID{"1", "2", "3", "5", "6", "7"} {
		if s.Pods[uid] != nil {
			uids = append(uids, string(uid))
		}
	}
	if got := strings.Join(uids, " "); got != "1 2 3 5 6" || !s.Synced {
		t.Errorf("pods: got %q, synced %v, want two generations of a, and no pod with the UID or static name of another", got,
			s.Synced)
	}
	if len(s.Problems) != 2 ||
		!strings.Contains(s.Problems[0].Message, `pod ns/u (UID 3) is rejected: pod ns/c from source "api"`) ||
		!strings.Contains(s.Problems[1].Message, `pod ns/s (UID 7) is rejected: pod ns/s from source "file"`) {
		t.Errorf("problems: got %v, want two about rejected pods", s.Problems)
	}
	if SourceOf(s.Pods["3"]) != SourceAPI {
		t.Error("a static pod with the UID of an API pod: got it accepted, want it refused")
	}
	if m, ok := s.Mirror("5"); !ok || m.UID != "mirror-of-5" {
		t.Errorf("mirror of 5: got %v, %v, want mirror-of-5", m, ok)
	}
	for uid, want := range map[types.UID]types.UID{"1": "1", "5": "mirror-of-5"} {
		if o, ok := s.Shown(uid); !ok || o.UID != want {
			t.Errorf("pod %s is shown by %v, %v, want %s", uid, o, ok, want)
		}
	}
	if o, ok := s.Shown("6"); ok {
		t.Errorf("pod 6, which has no mirror pod yet, is shown by %v, want none", o)
	}
	for _, uid := range []types.UID{"6", "1", "unknown"} {
		if m, ok := s.Mirror(uid); ok || m != nil {
			t.Errorf("pod %s has a mirror: want none for an old hash, an API pod, an unknown pod", uid)
		}
	}
}

func TestMergeWaits(t *testing.T) {
	s := merge([]delivery{
		{source: SourceAPI},
		{source: SourceFile, synced: true, problems: []Problem{{Source: SourceFile, Unknown: true}}},
	})
	if s.Synced || len(s.Waiting) != 1 || s.Waiting[0] != SourceAPI || !s.Unknown() {
		t.Errorf("synced %v, waiting for %v, unknown %v; want to wait for the API server", s.Synced, s.Waiting, s.Unknown())
	}
}
