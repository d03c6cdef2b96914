package images

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nodelet/nodelet/config"
)

// TestPullLimits checks that the limits of pulls count only if they are written.
func TestPullLimits(t *testing.T) {
	const head = "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n"
	for _, c := range []struct {
		text  string
		flags []string
		want  Config
	}{
		{"", nil, Config{}},
		{"maxPods: 10\n", nil, Config{}},
		{"serializeImagePulls: true\n", nil, Config{MaxParallel: 1}},
		{"serializeImagePulls: false\n", nil, Config{}},
		{"serializeImagePulls: false\nmaxParallelImagePulls: 3\n", nil, Config{MaxParallel: 3}},
		{"maxParallelImagePulls: 3\n", nil, Config{MaxParallel: 3}},
		{"maxParallelImagePulls: 1\n", nil, Config{MaxParallel: 1}},
		{"registryPullQPS: 5\n", nil, Config{QPS: 5, Burst: 10}},
		{"registryPullQPS: 0\n", nil, Config{Burst: 10}},
		{"registryBurst: 3\n", nil, Config{QPS: 5, Burst: 3}},
		{"", []string{"--serialize-image-pulls", "--registry-qps=7"}, Config{MaxParallel: 1, QPS: 7, Burst: 10}},
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(head+c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(append([]string{"--config", file, "--hostname-override=n"}, c.flags...))
		if err != nil {
			t.Fatal(err)
		}
		got := Settings(cfg)
		if got.MaxParallel != c.want.MaxParallel || got.QPS != c.want.QPS || got.Burst != c.want.Burst {
			t.Errorf("%q %q: got %d pulls at a time, %v in a second, burst %d; want %d, %v, %d", c.text, c.flags,
				got.MaxParallel, got.QPS, got.Burst, c.want.MaxParallel, c.want.QPS, c.want.Burst)
		}
	}
}
