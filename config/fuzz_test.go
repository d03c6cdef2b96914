package config

import (
	"os"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/internal/strict"
)

// FuzzParse checks that every content of a file is either rejected or gives a configuration that can be built.
func FuzzParse(f *testing.F) {
	for _, file := range []string{"testdata/kubeadm.yaml", "testdata/kind.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	text, err := os.ReadFile("testdata/answers.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range strings.Split(string(text), "\n== ")[1:] {
		_, body, _ := strings.Cut(c, "\n")
		f.Add([]byte(head + body))
	}
	f.Add([]byte(`{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","tracing":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		tree, err := strict.Parse(text, KubeletConfiguration{}, Kind, APIVersion)
		if withoutEmpty(err) != nil {
			return
		}
		merged := map[string]any{}
		mergePatch(merged, tree)
		c, err := decode(merged)
		if err != nil {
			t.Fatalf("checked, yet not decoded: %v", err)
		}
		setDefaults(c)
		if validate(c) != nil {
			return
		}
		use(&Config{Kubelet: *c})
		flags := flagValues{"hostname-override": "n"}
		if err := (&Config{Kubelet: *c}).addFlags(flags); err != nil && c.PodCIDR == "" {
			t.Fatalf("valid, yet not used: %v", err)
		}
		warnings(c, merged, flags)
	})
}

// FuzzFlags checks that a command line is rejected or gives values that fit their fields.
func FuzzFlags(f *testing.F) {
	f.Add("--max-pods=3\x00--cluster-dns=1.2.3.4,::1\x00-v=4")
	f.Add("--reserved-memory=0:memory=1Gi;1:x=2\x00--manifest-url-header=a:b")
	f.Add("--register-with-taints=a=b:NoSchedule\x00--feature-gates=A=true\x00--vmodule=a=1")
	f.Add("--node-ip=::1\x00--node-labels=a,b=c\x00--log-json-info-buffer-size=1Ki")
	f.Fuzz(func(t *testing.T, line string) {
		values, err := parseFlags(strings.Split(line, "\x00"))
		if err != nil {
			return
		}
		c := &KubeletConfiguration{}
		setDefaults(c)
		if err := applyFlags(c, values); err != nil {
			t.Fatalf("read, yet not applied: %v", err)
		}
		if validate(c) == nil {
			use(&Config{Kubelet: *c})
			_ = (&Config{Kubelet: *c}).addFlags(values) // may refuse labels and names, must not panic
		}
	})
}

// use derives all values from a valid configuration.
func use(c *Config) {
	c.RefusesCgroupV1()
	c.RefusesSwap()
	c.Server()
	c.Healthz()
	c.TLS()
	c.Thresholds()
	c.Reserved()
	c.CrashLoop()
}
