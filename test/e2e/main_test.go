//go:build e2e

// Package e2e tests the nodelet binary as the agent of a real node: with kube-apiserver, scheduler,
// controller-manager, etcd, containerd, runc and CNI plugins. It owns one testbed for all its tests. Each test
// creates what it needs, deletes it, and checks that no trace of a pod is left on the node, so that the tests can run
// in any order, alone or together. A crash leaves the testbed running; the next run, of any clone, removes it.
//
// Tests named TestLong… need minutes, large programs or load. `make root` skips them, `make e2e` runs them.
//
// Environment variables:
//   - NODELET_E2E_NAME is the name of the testbed, so that two runs can go on at the same time. The default is e2e.
//
// - NODELET_E2E_NETWORK=agent lets nodelet set up the pod network instead of the runtime; see testbed.Options.Network.
//   - NODELET_E2E_RUNTIME=crio uses CRI-O instead of containerd.
//
// - NODELET_E2E_TESTBED=NAME uses a testbed that is already up, with the agent that runs there, and leaves it up. It is
// for work
//
//	on the tests themselves.
package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/testbed"
)

var (
	// tb is the testbed of all tests. nodelet is the agent of its node, unless a test changes that for a while.
	tb *testbed.Testbed
	// api is a client of its API server with the rights of the cluster's administrator.
	api *client.Client
	// program is the path of the nodelet binary.
	program string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Println("e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, fmt.Errorf("these tests start a cluster and need root; nothing was tested")
	}
	ctx := context.Background()
	if program, err = filepath.Abs(cmp.Or(os.Getenv("NODELET_E2E_PROGRAM"), "../../bin/nodelet")); err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		return 1, fmt.Errorf("find nodelet's program (run `make build` first): %w", err)
	}
	down, err := up(ctx)
	if err != nil {
		return 1, fmt.Errorf("start the testbed: %w", err)
	}
	cfg, err := client.LoadConfig(tb.Kubeconfig)
	if err == nil {
		api, err = client.New(cfg, 500, 500, "e2e")
	}
	if err == nil {
		code = m.Run()
	}
	if code != 0 {
		err = errors.Join(err, tb.KeepLogs(os.Stderr))
	}
	if downErr := down(); err == nil && downErr != nil {
		err = fmt.Errorf("end the testbed: %w", downErr)
	}
	return code, err
}

// up starts the testbed, or opens one that is already up.
func up(ctx context.Context) (down func() error, err error) {
	if name := os.Getenv("NODELET_E2E_TESTBED"); name != "" {
		tb, err = testbed.Open(ctx, name, os.Stderr)
		return func() error { return nil }, err
	}
	name := cmp.Or(os.Getenv("NODELET_E2E_NAME"), "e2e")
	release, err := testbed.Own(ctx, name, os.Stderr)
	if err != nil {
		return nil, err
	}
	tb, err = testbed.Up(ctx, testbed.Options{
		Name:       name,
		Agent:      testbed.Nodelet,
		NodeletBin: program,
		Network:    os.Getenv("NODELET_E2E_NETWORK"),
		Runtime:    os.Getenv("NODELET_E2E_RUNTIME"),
		Progress:   os.Stderr,
	})
	return func() error {
		defer release()
		return tb.Down(ctx)
	}, err
}

func node() *testbed.Node { return tb.Nodes[0] }
