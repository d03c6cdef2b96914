package testbed_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/testbed"
	"github.com/nodelet/nodelet/test/waittest"
)

// waitLimit is an option of kubectl: the limit for what it waits for.
var waitLimit = "--timeout=" + waittest.Limit.String()

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
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Logf("leftovers: got\n%s\nwant none", strings.Join(left, "\n"))
		}
	}()
	waittest.Until(t, "nothing of pods is left", func() bool {
		left = leftovers(ctx, t, tb)
		return len(left) == 0
	})
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
