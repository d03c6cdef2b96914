package iscsi

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNames checks that names and directories are the kubelet's.
func TestNames(t *testing.T) {
	t.Parallel()
	initiator := "iqn.2026-01.test:host"
	for _, c := range []struct {
		source            corev1.ISCSIVolumeSource
		portals           []string
		handle, directory string
	}{
		{
			corev1.ISCSIVolumeSource{
				TargetPortal: "10.0.0.1",
				IQN:          "iqn.2026-01.test:a",
				Lun:          0,
				Portals:      []string{"10.0.0.2:3261", "10.0.0.1"},
			},
			[]string{"10.0.0.1:3260", "10.0.0.2:3261"},
			"10.0.0.1:3260:iqn.2026-01.test:a:0",
			"iface-default/10.0.0.1:3260-iqn.2026-01.test:a-lun-0",
		},
		{
			corev1.ISCSIVolumeSource{
				TargetPortal:   "[2001:db8::1]:3260",
				IQN:            "eui.0123456789abcdef",
				Lun:            17,
				ISCSIInterface: "eth0",
			},
			[]string{"[2001:db8::1]:3260"},
			"[2001:db8::1]:3260:eui.0123456789abcdef:17",
			"iface-eth0/[2001:db8::1]:3260-eui.0123456789abcdef-lun-17",
		},
		{corev1.ISCSIVolumeSource{TargetPortal: "[::1]", IQN: "iqn.2026-01.test:x-lun-3", Lun: 4, InitiatorName: &initiator},
			[]string{"[::1]:3260"}, "[::1]:3260:iqn.2026-01.test:x-lun-3:4",
			"iface-[::1]:3260:vol/[::1]:3260-iqn.2026-01.test:x-lun-3-lun-4"},
	} {
		l, err := Of("vol", &c.source)
		if err != nil {
			t.Error(err)
		}
		if !slices.Equal(l.Portals, c.portals) || l.Handle() != c.handle || l.Directory() != c.directory {
			t.Errorf("got %q %s %s, want %q %s %s", l.Portals, l.Handle(), l.Directory(), c.portals, c.handle, c.directory)
		}
		if handle, ok := HandleOf(l.Directory()); !ok || handle != c.handle {
			t.Errorf("%s: got %q, want %q", l.Directory(), handle, c.handle)
		}
	}
	for _, directory := range []string{"iface-default/x", "volumeDevices/10.0.0.1:3260-iqn.a-lun-0",
		"iface-default/10.0.0.1:3260-what-lun-0"} {
		if handle, ok := HandleOf(directory); ok {
			t.Errorf("%s: got the handle %s, want none", directory, handle)
		}
	}
}

// TestCheck checks that what a volume says must lead to no other path and no other argument.
func TestCheck(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*corev1.ISCSIVolumeSource){
		"iqn with a slash":         func(s *corev1.ISCSIVolumeSource) { s.IQN = "iqn.a/../../b" },
		"iqn like a flag":          func(s *corev1.ISCSIVolumeSource) { s.IQN = "--logout" },
		"interface with a slash":   func(s *corev1.ISCSIVolumeSource) { s.ISCSIInterface = "../x" },
		"portal with a slash":      func(s *corev1.ISCSIVolumeSource) { s.TargetPortal = "a/b:3260" },
		"portal like a flag":       func(s *corev1.ISCSIVolumeSource) { s.Portals = []string{"--x:1"} },
		"lun below zero":           func(s *corev1.ISCSIVolumeSource) { s.Lun = -1 },
		"initiator of two lines":   func(s *corev1.ISCSIVolumeSource) { name := "iqn.a\nb"; s.InitiatorName = &name },
		"interface without an end": func(s *corev1.ISCSIVolumeSource) { s.ISCSIInterface = "a b" },
	} {
		s := corev1.ISCSIVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2026-01.test:a"}
		change(&s)
		if _, err := Of("vol", &s); err == nil || !strings.HasPrefix(err.Error(), "iscsi: ") {
			t.Errorf("%s: got %v, want an error", what, err)
		}
	}
}

// TestSetLines checks that a record keeps the lines that are not set, and its end marker stays last.
func TestSetLines(t *testing.T) {
	t.Parallel()
	got := setLines("# BEGIN RECORD\na = 1\nb = 2\n# END RECORD\n", map[string]string{"b": "x = y", "c": "3"})
	if want := "# BEGIN RECORD\na = 1\nb = x = y\nc = 3\n# END RECORD\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
