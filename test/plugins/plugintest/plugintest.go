// Package plugintest runs the handler of a type of plugins on a node, for the tests of such handlers.
//
// It owns a root directory and a plugins.Registry in it. It knows no type of plugins; the fakes of plugins are in the
// packages named fake. Only tests call it. A test that crashes leaves its root directory behind, below the directory
// for temporary files.
package plugintest

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/test/waittest"
)

// Handler is the handler of a type of plugins that runs until its context ends.
type Handler interface {
	plugins.Handler
	Run(ctx context.Context)
}

// Node is a root directory in which one handler at a time runs.
type Node struct {
	T *testing.T
	// Dir is the root directory of the agent. Its path is short, because that of a socket has at most 107 bytes.
	Dir string

	kill func()

	mu    sync.Mutex
	woken []types.UID
}

// New returns a node without a handler. It ends with the test.
func New(t *testing.T) *Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{T: t, Dir: dir}
	t.Cleanup(func() {
		n.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Run runs a handler, and the registration of its plugins below root, until Kill.
func (n *Node) Run(root, pluginType string, h Handler) {
	ctx, cancel := context.WithCancel(context.Background())
	registry := plugins.New(plugins.Config{
		Root: root, Handlers: map[string]plugins.Handler{pluginType: h}, Log: slog.New(slog.DiscardHandler),
	})
	var running sync.WaitGroup
	running.Go(func() { registry.Run(ctx) })
	running.Go(func() { h.Run(ctx) })
	n.kill = func() {
		cancel()
		running.Wait()
	}
}

// Kill ends the handler as SIGKILL would: its calls are cut off, and nothing is written any more.
func (n *Node) Kill() {
	if n.kill != nil {
		n.kill()
		n.kill = nil
	}
}

// Wake records the pods that the handler wakes. Use it as the Wake of a handler's configuration.
func (n *Node) Wake(pods []types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.woken = append(n.woken, pods...)
}

// Woken returns the pods that were woken, in their order.
func (n *Node) Woken() []types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.woken)
}

// Until waits for something that no call of the test brings about.
func (n *Node) Until(what string, ok func() bool) {
	n.T.Helper()
	waittest.Until(n.T, what, ok)
}
