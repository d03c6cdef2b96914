//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"os"
	"testing"
	"time"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/testbed"
)

// onTestbed runs the rest of a test on a testbed of its own. All helpers use that testbed until the test ends, and
// then no trace of a pod may be left on any node.
func onTestbed(t *testing.T, o testbed.Options) {
	t.Helper()
	o.Name = cmp.Or(os.Getenv("NODELET_E2E_NAME"), "e2e") + "-" + o.Name
	o.Agent, o.NodeletBin = testbed.Nodelet, program
	o.Progress = os.Stderr
	beforeTB, beforeAPI := tb, api
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute) // the first run builds the programs
	defer cancel()
	release, err := testbed.Own(ctx, o.Name, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	up, err := testbed.Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tb, api = beforeTB, beforeAPI
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := up.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	tb = up
	cfg, err := client.LoadConfig(tb.Kubeconfig)
	if err == nil {
		api, err = client.New(cfg, 500, 500, "e2e")
	}
	if err != nil {
		t.Fatal(err)
	}
	clean(t)
}
