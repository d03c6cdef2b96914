package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodelet/nodelet/test/testbed"
)

// probedPods is the kubelet's default of pods on a node.
const probedPods = 110

// serverPort is where the server in a pod with probes listens.
const serverPort = 8080

// probes measures each agent at rest with pods that have three probes each, and how soon pods start and end beside
// them.
func (b *bench) probes(ctx context.Context) error {
	return b.onAgents(ctx, func(ctx context.Context, side string) error {
		if err := b.onePod(ctx, "warm-up", nil); err != nil {
			return err
		}
		if err := b.singles(ctx, side, ""); err != nil {
			return err
		}
		if err := (&resting{b}).atRest(ctx, side, probedPods); err != nil {
			return err
		}
		if err := b.singles(ctx, side, ", beside "+b.loadName(probedPods)); err != nil {
			return err
		}
		return b.deletePods(ctx)
	}, nil)
}

// probed is a pod of one server with the three probes of a usual Deployment. None is a command, which would be work
// for the runtime and not for the agent. The startup probe asks each second, so that pods are there soon; it is over
// before anything is measured. The others have the API's default period of 10 s.
func (b *bench) probed(name string) *corev1.Pod {
	pod := b.pod(name)
	port := intstr.FromInt32(serverPort)
	get := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: port}}
	dial := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
	pod.Spec.Containers = []corev1.Container{{
		Name: "server", Image: testbed.AgnhostImage, ImagePullPolicy: corev1.PullIfNotPresent,
		Args:           []string{"netexec", fmt.Sprintf("--http-port=%d", serverPort)},
		StartupProbe:   &corev1.Probe{ProbeHandler: get, PeriodSeconds: 1, FailureThreshold: 30},
		LivenessProbe:  &corev1.Probe{ProbeHandler: dial},
		ReadinessProbe: &corev1.Probe{ProbeHandler: get},
	}}
	return pod
}
