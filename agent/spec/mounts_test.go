package spec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestMountErrors(t *testing.T) {
	rro := func(m corev1.RecursiveReadOnlyMode) *corev1.RecursiveReadOnlyMode { return &m }
	for name, c := range map[string]struct {
		mount corev1.VolumeMount
		text  string
	}{
		"unknown volume": {
			corev1.VolumeMount{Name: "gone", MountPath: "/x"},
			`cannot find volume "gone" to mount into container "c"`,
		},
		"device as mount": {corev1.VolumeMount{Name: "raw", MountPath: "/x"}, `cannot find volume "raw"`},
		"no path":         {corev1.VolumeMount{Name: "vol"}, "path is empty"},
		"NUL in path":     {corev1.VolumeMount{Name: "vol", MountPath: "/a\x00"}, "NUL"},
		"absolute subPath": {
			corev1.VolumeMount{Name: "vol", MountPath: "/x", SubPath: "/etc"},
			"error SubPath `/etc` must not be an absolute path",
		},
		"subPath above": {corev1.VolumeMount{Name: "vol", MountPath: "/x", SubPath: "a/../../b"}, "'..'"},
		"subPath is above": {
			corev1.VolumeMount{Name: "vol", MountPath: "/x", SubPath: ".."},
			"unable to provision SubPath `..`: must not contain '..'",
		},
		"NUL in subPath":       {corev1.VolumeMount{Name: "vol", MountPath: "/x", SubPath: "a\x00"}, "NUL"},
		"image subPath above":  {corev1.VolumeMount{Name: "img", MountPath: "/x", SubPath: "../.."}, "'..'"},
		"subPathExpr above":    {corev1.VolumeMount{Name: "vol", MountPath: "/x", SubPathExpr: "$(UP)/x"}, "'..'"},
		"subPathExpr absolute": {corev1.VolumeMount{Name: "vol", MountPath: "/x", SubPathExpr: "$(ROOT)"}, "absolute"},
		"subPathExpr unknown": {
			corev1.VolumeMount{Name: "vol", MountPath: "/x", SubPathExpr: "$(B)$(NONE)$(A)"},
			"missing value for A, B, NONE",
		},
		"subPath unresolved": {
			corev1.VolumeMount{Name: "vol", MountPath: "/x", SubPath: "a"},
			`failed to prepare subPath for volumeMount "vol"`,
		},
		"unknown propagation": {
			corev1.VolumeMount{
				Name:             "vol",
				MountPath:        "/x",
				MountPropagation: new(corev1.MountPropagationMode("Some")),
			},
			`"Some"`,
		},
		"bidirectional": {
			corev1.VolumeMount{Name: "vol", MountPath: "/x", MountPropagation: new(corev1.MountPropagationBidirectional)},
			"privileged",
		},
		"recursive, writable": {
			corev1.VolumeMount{Name: "vol", MountPath: "/x", RecursiveReadOnly: rro(corev1.RecursiveReadOnlyEnabled)},
			"failed to resolve recursive read-only mode: volume \"vol\" requested recursive read-only mode, " +
				"but it is not read-only",
		},
		"recursive, propagated": {
			corev1.VolumeMount{
				Name:              "vol",
				MountPath:         "/x",
				ReadOnly:          true,
				RecursiveReadOnly: rro(corev1.RecursiveReadOnlyEnabled),
				MountPropagation:  new(corev1.MountPropagationHostToContainer),
			},
			"failed to resolve recursive read-only mode: volume \"vol\" requested recursive read-only mode, " +
				"but it is not compatible",
		},
		"recursive, no support": {
			corev1.VolumeMount{
				Name:              "vol",
				MountPath:         "/x",
				ReadOnly:          true,
				RecursiveReadOnly: rro(corev1.RecursiveReadOnlyEnabled),
			},
			"failed to resolve recursive read-only mode: volume \"vol\" requested recursive read-only mode, " +
				"but it is not supported by the runtime",
		},
		"recursive, unknown": {
			corev1.VolumeMount{Name: "vol", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: rro("Maybe")},
			`"Maybe"`,
		},
	} {
		in := testInput()
		env(in, corev1.EnvVar{Name: "UP", Value: ".."}, corev1.EnvVar{Name: "ROOT", Value: "/etc"}, corev1.EnvVar{Name: "B"})
		in.Container.VolumeMounts = []corev1.VolumeMount{c.mount}
		_, err := Container(in)
		wantReason(t, name, err, "CreateContainerConfigError", c.text)
	}
}

func TestSubPaths(t *testing.T) {
	in := testInput()
	env(in, corev1.EnvVar{Name: "A", Value: "x/y"})
	in.Container.VolumeMounts = []corev1.VolumeMount{
		{Name: "vol", MountPath: "/0"},
		{Name: "vol", MountPath: "/1", SubPath: "a/b"},
		{Name: "img", MountPath: "/2", SubPath: "a"},
		{Name: "vol", MountPath: "/3", SubPathExpr: "$(A)-$$(A)"},
	}
	got, err := SubPaths(in)
	if err != nil || len(got) != 2 || got[0] != (SubPath{1, "vol", "a/b"}) || got[1] != (SubPath{3, "vol", "x/y-$(A)"}) {
		t.Errorf("got %v %v, want two", got, err)
	}
	in.Container.VolumeMounts = []corev1.VolumeMount{{Name: "vol", MountPath: "/1", SubPath: "../b"}}
	_, err = SubPaths(in)
	wantReason(t, "sub-path above", err, "CreateContainerConfigError", "'..'")
}

func TestRecursiveReadOnlyIfPossible(t *testing.T) {
	mode := corev1.RecursiveReadOnlyIfPossible
	none := corev1.MountPropagationNone
	for _, supported := range []bool{false, true} {
		in := testInput()
		in.RecursiveReadOnly = supported
		in.Container.VolumeMounts = []corev1.VolumeMount{{
			Name:              "vol",
			MountPath:         "/x",
			ReadOnly:          true,
			RecursiveReadOnly: &mode,
			MountPropagation:  &none,
		}}
		config, err := Container(in)
		if err != nil || config.Mounts[0].RecursiveReadOnly != supported {
			t.Errorf("supported %v: got %v, %v", supported, config, err)
		}
	}
}

// TestHostsMount checks that the managed /etc/hosts is mounted once the pod has an address, unless the user's volume
// mounts replace it.
func TestHostsMount(t *testing.T) {
	for name, c := range map[string]struct {
		ips     []string
		hostNet bool
		mount   string
		want    bool
	}{
		"with address":              {ips: []string{"10.0.0.1"}, want: true},
		"without address":           {},
		"host network":              {hostNet: true, want: true},
		"own hosts":                 {ips: []string{"10.0.0.1"}, mount: "/etc/hosts"},
		"own hosts on host network": {hostNet: true, mount: "/etc/hosts"},
		"something else below /etc": {ips: []string{"10.0.0.1"}, mount: "/etc/hosts.d", want: true},
	} {
		in := testInput()
		in.PodIPs, in.Pod.Spec.HostNetwork = c.ips, c.hostNet
		if c.mount != "" {
			in.Container.VolumeMounts = []corev1.VolumeMount{{Name: "vol", MountPath: c.mount}}
		}
		config, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, m := range config.Mounts {
			found = found || m.HostPath == "/var/lib/kubelet/pods/uid-1/etc-hosts"
		}
		if found != c.want {
			t.Errorf("%s: got %v", name, config.Mounts)
		}
	}
}

func TestTerminationMessageMount(t *testing.T) {
	in := testInput()
	in.PodIPs, in.Container.TerminationMessagePath = nil, ""
	if config, err := Container(in); err != nil || len(config.Mounts) != 0 {
		t.Errorf("got %v, %v, want a container without mounts", config, err)
	}
	in.Container.TerminationMessagePath = "/a\x00"
	_, err := Container(in)
	wantReason(t, "NUL", err, "CreateContainerConfigError", "terminationMessagePath")
}

func TestBlockDeviceErrors(t *testing.T) {
	for name, c := range map[string]struct {
		device corev1.VolumeDevice
		text   string
	}{
		"relative": {corev1.VolumeDevice{Name: "raw", DevicePath: "dev/x"}, "must be an absolute path"},
		"unknown volume": {
			corev1.VolumeDevice{Name: "gone", DevicePath: "/dev/x"},
			`cannot find volume "gone" to pass into container "c"`,
		},
		"not a device":   {corev1.VolumeDevice{Name: "vol", DevicePath: "/dev/x"}, `cannot find volume "vol"`},
		"no device path": {corev1.VolumeDevice{Name: "raw"}, "absolute"},
	} {
		in := testInput()
		in.Container.VolumeDevices = []corev1.VolumeDevice{c.device}
		_, err := Container(in)
		wantReason(t, name, err, "CreateContainerConfigError", c.text)
	}
}

// TestBindMountOptions checks that the options of a volume mount reach the runtime (KEP-5855).
func TestBindMountOptions(t *testing.T) {
	in := testInput()
	in.Container.VolumeMounts = []corev1.VolumeMount{{
		Name:             "vol",
		MountPath:        "/x",
		BindMountOptions: []string{"noexec", "nosuid"},
	}}
	config, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(config.Mounts[0].MountOptions, ","), "noexec,nosuid"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
