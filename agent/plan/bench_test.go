package plan

import (
	"testing"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
)

// benchmarkPod is a typical pod: an init container, a sidecar, two app containers with probes, four volumes.
const benchmarkPod = `
metadata: {generation: 1}
spec:
  restartPolicy: Always
  volumes: [{name: a}, {name: b}, {name: c}, {name: kube-api-access}]
  initContainers:
  - {name: setup, image: setup:1}
  - {name: mesh, image: mesh:1, restartPolicy: Always, startupProbe: {}}
  containers:
  - name: web
    image: web:1
    readinessProbe: {}
    livenessProbe: {}
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}}
    volumeMounts: [{name: a, mountPath: /a}, {name: kube-api-access, mountPath: /var/run/secrets, readOnly: true}]
  - {name: log, image: log:1}
`

// BenchmarkPod measures one decision about a typical pod: at rest, while it starts, and in a crash loop.
func BenchmarkPod(b *testing.B) {
	starting := newWorld(podstate.Desired{Pod: podOf(b, benchmarkPod)}, epoch)
	starting.desired.Hashes = hashesOf(starting.desired.Pod)
	starting.turn()

	resting := newWorld(podstate.Desired{Pod: podOf(b, benchmarkPod)}, epoch)
	resting.desired.Hashes = hashesOf(resting.desired.Pod)
	good := podstate.ProbeResults{
		Startup:   podstate.ProbeSuccess,
		Liveness:  podstate.ProbeSuccess,
		Readiness: podstate.ProbeSuccess,
	}
	for resting.turn(); len(resting.plan.Steps) > 0; resting.turn() {
		for _, s := range resting.plan.Steps {
			c := resting.begin(s)
			c.problem = resting.effect(c)
			resting.finish(c, time.Time{})
		}
		for _, c := range resting.containers {
			if c.Name == "setup" {
				resting.exit(c.ID, 0)
			}
			resting.probed[c.ID] = good
		}
	}
	if st := resting.plan.Status; st.Phase != "Running" || !st.ContainerStatuses[1].Ready {
		b.Fatalf("the pod does not run:\n%s", statusText(st))
	}
	for name, w := range map[string]*world{"starting": starting, "resting": resting} {
		o := w.observe()
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Pod(w.desired, o)
			}
		})
	}
}
