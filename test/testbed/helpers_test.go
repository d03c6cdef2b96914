package testbed_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

func kubectl(ctx context.Context, t *testing.T, tb *testbed.Testbed, args ...string) string {
	t.Helper()
	out, err := tb.Kubectl(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func leftovers(ctx context.Context, t *testing.T, tb *testbed.Testbed) []string {
	t.Helper()
	left, err := tb.Leftovers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// awaitClean waits until nothing of pods is left on the nodes. The kubelet removes terminated sandboxes once a minute.
func awaitClean(ctx context.Context, t *testing.T, tb *testbed.Testbed) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		left := leftovers(context.WithoutCancel(ctx), t, tb)
		if len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("leftovers: got\n%s\nwant none", strings.Join(left, "\n"))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func eventually(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("want within 30s: %s", what)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
