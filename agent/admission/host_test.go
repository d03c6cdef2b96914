package admission

import "testing"

func TestForbiddenSysctls(t *testing.T) {
	unsafe := []string{"kernel.msg*", "net.core.somaxconn", "net/ipv4/route/*", "vm.*", "user.*",
		"kernel.domainname"}
	for _, c := range []struct{ name, pod, want string }{
		{"none", `{spec: {containers: [{name: app}]}}`, ""},
		{"safe", `{spec: {securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: "1"}]}}}`, ""},
		{"safe, with slashes", `{spec: {securityContext: {sysctls: [{name: net/ipv4/tcp_syncookies, value: "1"}]}}}`, ""},
		{"allowed by name", `{spec: {securityContext: {sysctls: [{name: net.core.somaxconn, value: "1"}]}}}`, ""},
		{"allowed by prefix", `{spec: {securityContext: {sysctls: [{name: kernel.msgmax, value: "1"}]}}}`, ""},
		{"allowed by a prefix with slashes",
			`{spec: {securityContext: {sysctls: [{name: net.ipv4.route.min_pmtu, value: "1"}]}}}`, ""},
		{"a name is no prefix", `{spec: {securityContext: {sysctls: [{name: net.core.somaxconnx, value: "1"}]}}}`,
			`forbidden sysctl: "net.core.somaxconnx" not allowlisted`},
		{"not allowed", `{spec: {securityContext: {sysctls: [{name: kernel.sem, value: "1"}]}}}`,
			`forbidden sysctl: "kernel.sem" not allowlisted`},
		{"the second of two",
			`{spec: {securityContext: {sysctls: [{name: kernel.shm_rmid_forced}, {name: vm.swappiness, value: "1"}]}}}`,
			`forbidden sysctl: "vm.swappiness" not allowlisted`},
		{"the node's network",
			`{spec: {hostNetwork: true, securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}]}}}`,
			`forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`},
		{"the node's IPC, by a prefix",
			`{spec: {hostIPC: true, securityContext: {sysctls: [{name: kernel.msgmax, value: "1"}]}}}`,
			`forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled`},
		{"safe since Kubernetes 1.37", `{spec: {securityContext: {sysctls:
			[{name: net.ipv4.tcp_notsent_lowat, value: "1"}, {name: net.ipv4.tcp_slow_start_after_idle, value: "0"}]}}}`, ""},
		{"the node's user namespace",
			`{spec: {securityContext: {sysctls: [{name: user.max_user_namespaces, value: "1"}]}}}`,
			`forbidden sysctl: "user.max_user_namespaces" not allowed with host User enabled`},
		{"the node's UTS namespace, which is shared with its network",
			`{spec: {hostNetwork: true, securityContext: {sysctls: [{name: kernel.domainname, value: "x"}]}}}`,
			`forbidden sysctl: "kernel.domainname" not allowed with host UTS enabled`},
		{"a UTS namespace of its own",
			`{spec: {securityContext: {sysctls: [{name: kernel.domainname, value: "x"}]}}}`, ""},
		{"a user namespace of its own",
			`{spec: {hostUsers: false, securityContext: {sysctls: [{name: user.max_user_namespaces, value: "1"}]}}}`, ""},
		{"the node's IPC does not matter to the network",
			`{spec: {hostIPC: true, securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}]}}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkHost(t, c.pod, Node{UnsafeSysctls: unsafe}, "SysctlForbidden", c.want)
		})
	}
}

func TestForbiddenAppArmor(t *testing.T) {
	const refused = "Cannot enforce AppArmor: AppArmor is not enabled on the host"
	for _, c := range []struct{ name, pod, want string }{
		{"none", `{spec: {containers: [{name: app}]}}`, ""},
		{"unconfined", `{spec: {securityContext: {appArmorProfile: {type: Unconfined}}}}`, ""},
		{"of the pod", `{spec: {securityContext: {appArmorProfile: {type: RuntimeDefault}}}}`, refused},
		{"of a container", `{spec: {containers: [{name: a}, {name: b,
			securityContext: {appArmorProfile: {type: RuntimeDefault}}}]}}`, refused},
		{"of an init container",
			`{spec: {initContainers: [{name: b, securityContext: {appArmorProfile: {type: RuntimeDefault}}}]}}`, refused},
		{"of an ephemeral container",
			`{spec: {ephemeralContainers: [{name: b, securityContext: {appArmorProfile: {type: RuntimeDefault}}}]}}`, refused},
		{"by annotation", `{metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/a: localhost/x}}}`,
			refused},
		{"unconfined by annotation",
			`{metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/a: unconfined}}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkHost(t, c.pod, Node{}, "AppArmor", c.want)
			checkHost(t, c.pod, Node{AppArmor: true}, "", "")
		})
	}
}

func checkHost(t *testing.T, pod string, node Node, reason, want string) {
	t.Helper()
	got := forbidden(podOf(t, pod), &node)
	switch {
	case want == "" && got != nil:
		t.Errorf("got rejection %v, want admission", *got)
	case want != "" && (got == nil || *got != *reject(reason, want)):
		t.Errorf("got %v, want %s: %s", got, reason, want)
	}
}
