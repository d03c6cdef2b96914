package main

import (
	"context"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/plugins/devices"
)

// newPlacement sets up the CPU, memory and topology managers.
func newPlacement(p *process, r *containerRuntime, m *machine, l *links) (placement.Placement, error) {
	placed, err := placement.Open(os.DirFS("/"), placement.Config{
		Root:        p.cfg.Paths.Root,
		Settings:    placement.SettingsOf(p.cfg),
		Reservation: m.node.Reservation(),
		Runtime:     r.client,
		Ended: func(ctx context.Context, pods []types.UID) []types.UID {
			return l.supervisor.Ended(ctx, pods)
		},
		Devices: func(pod *corev1.Pod) map[string]devices.View { return l.devices.Views(pod) },
		Meter:   instruments.NewPlacement(p.metrics),
		Log:     p.log,
	})
	if err != nil {
		return nil, err
	}
	p.start(placed.Run)
	return placed, nil
}
