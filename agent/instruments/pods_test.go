package instruments

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/metrics/exporter"
)

// snapshot are pods that do not change.
type snapshot []agent.PodView

func (c snapshot) SyncedPods(context.Context) ([]agent.PodView, error) { return c, nil }

// TestMetrics checks that /metrics has the numbers of pods and what was counted, under the kubelet's names.
func TestMetrics(t *testing.T) {
	e := exporter.New("node-1")
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{"kubernetes.io/config.source": "file"},
	}}
	runs := cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{
		State: runtimeapi.ContainerState_CONTAINER_RUNNING,
	}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
		Containers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}},
	}}
	running := corev1.PodStatus{Phase: corev1.PodRunning}
	AddPods(e, snapshot{
		{Pod: static, Status: running, Mirror: static, Runtime: &cri.Snapshot{
			Sandboxes:  []*runtimeapi.PodSandboxStatus{{Id: "s"}}, // it is ready
			Containers: []cri.Container{runs, runs},
		}},
		{Pod: pod, Status: running, Runtime: &cri.Snapshot{}, Mounted: map[string]string{"data": "/data"}},
		{Pod: pod, Status: corev1.PodStatus{Phase: corev1.PodFailed}, Runtime: &cri.Snapshot{},
			Stop: &podstate.Stop{Cause: podstate.StopOrphaned}},
		{Pod: static, Status: running, Runtime: &cri.Snapshot{}, Mirror: static, // its manifest is gone
			Stop: &podstate.Stop{Cause: podstate.StopOrphaned}},
	}, bare{}, 2)
	m := New(e)
	for _, reason := range []string{"OutOfcpu", "OutOfvendor.com/gpu", "OutOfhugepages-2Mi", "NodeAffinity"} {
		m.Rejected(reason)
	}
	started := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}}
	m.Running(started, time.Now(), time.Hour)
	stateful := started.DeepCopy()
	stateful.Spec.Volumes = []corev1.Volume{{Name: "db", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "db"},
	}}}
	m.Running(stateful, time.Now(), 0)
	m.Step(pod, podstate.Mount{Volume: "data"}, time.Second, &podstate.Problem{})
	m.Step(pod, podstate.CreateSandbox{}, time.Second, nil)
	m.Step(pod, podstate.CreateSandbox{}, time.Second, &podstate.Problem{})
	m.SandboxRun("runsc", time.Second, nil)
	m.SandboxRun("runsc", time.Second, errors.New("no network"))
	for reason, s := range map[string]podstate.Step{
		"image":        podstate.EnsureImage{Container: "app"},
		"image volume": podstate.EnsureImage{Volume: "data"},
		"create":       podstate.CreateContainer{Name: "app"},
		"start":        podstate.StartContainer{Name: "app"},
		"poststart":    podstate.PostStart{Name: "app"},
	} {
		m.Step(pod, s, time.Second, &podstate.Problem{Reason: reason})
		m.Step(pod, s, time.Second, &podstate.Problem{Reason: "cancelled", Cancelled: true})
	}
	m.Step(pod, podstate.PostStart{Name: "app"}, time.Second, &podstate.Problem{}) // has not run, and is tried again
	m.Step(pod, podstate.StartContainer{Name: "app"}, time.Second, nil)
	m.VolumeOperation("volume_mount", "kubernetes.io/csi:d", time.Second, nil)
	m.VolumeOperation("volume_mount", "kubernetes.io/csi:d", time.Second, errors.New("away"))
	m.CSICalled("d", "NodeStageVolume", time.Second, nil)
	m.CSICalled("d", "NodeStageVolume", time.Second, status.Error(codes.Aborted, "busy"))
	m.Relisted(time.Unix(1000, 0), time.Second, nil)
	m.Relisted(time.Unix(1060, 0), time.Second, errors.New("away"))
	w := httptest.NewRecorder()
	for _, m := range e.Mounts() {
		if m.Path == "/metrics" {
			m.Handler.ServeHTTP(w, httptest.NewRequest("GET", m.Path, nil))
		}
	}
	text := w.Body.String()
	for _, want := range []string{
		`kubelet_active_pods{static=""} 1`,
		`kubelet_active_pods{static="true"} 1`,
		`kubelet_desired_pods{static=""} 1`,
		`kubelet_desired_pods{static="true"} 1`,
		`kubelet_mirror_pods 2`,
		`kubelet_running_pods 1`,
		`kubelet_working_pods{config="desired",lifecycle="sync",static="true"} 1`,
		`kubelet_working_pods{config="desired",lifecycle="sync",static=""} 1`,
		`kubelet_working_pods{config="orphan",lifecycle="terminated",static=""} 1`,
		`kubelet_working_pods{config="orphan",lifecycle="terminating",static="true"} 1`,
		`kubelet_working_pods{config="runtime_only",lifecycle="terminating",static="unknown"} 0`,
		`kubelet_running_containers{container_state="running"} 2`,
		`kubelet_cgroup_version 2`,
		`kubelet_pleg_last_seen_seconds 1000`,
		`kubelet_started_pods_total 2`,
		`kubelet_started_pods_errors_total 1`,
		`kubelet_started_containers_total{container_type="container"} 4`, // with the one that succeeds
		`kubelet_started_containers_errors_total{code="image",container_type="container"} 1`,
		`kubelet_started_containers_errors_total{code="create",container_type="container"} 1`,
		`kubelet_started_containers_errors_total{code="start",container_type="container"} 1`,
		`kubelet_started_containers_errors_total{code="poststart",container_type="container"} 1`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/empty-dir",state="actual_state_of_world"} 1`,
		`kubelet_admission_rejections_total{reason="OutOfcpu"} 1`,
		`kubelet_admission_rejections_total{reason="OutOfExtendedResources"} 2`,
		`kubelet_admission_rejections_total{reason="Other"} 1`,
		`kubelet_pod_start_total_duration_seconds_count 2`,
		`kubelet_pod_start_sli_duration_seconds_count 1`,
		`kubelet_run_podsandbox_duration_seconds_count{runtime_handler="runsc"} 2`,
		`kubelet_run_podsandbox_errors_total{runtime_handler="runsc"} 1`,
		`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="success",` +
			`volume_plugin="kubernetes.io/csi:d"} 1`,
		`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="fail-unknown",` +
			`volume_plugin="kubernetes.io/csi:d"} 1`,
		`csi_operations_seconds_count{driver_name="d",grpc_status_code="OK",method_name="/csi.v1.Node/NodeStageVolume",` +
			`migrated="false"} 1`,
		`csi_operations_seconds_count{driver_name="d",grpc_status_code="Aborted",` +
			`method_name="/csi.v1.Node/NodeStageVolume",migrated="false"} 1`,
		`nodelet_step_duration_seconds_count{result="failure",step="Mount"} 1`,
		`nodelet_step_duration_seconds_count{result="success",step="CreateSandbox"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("/metrics: got no line %q, want it", want)
		}
	}
	if strings.Contains(text, `code=""`) {
		t.Error("/metrics: got a failed start without a reason, want none")
	}
}
