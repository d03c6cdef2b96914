package cri

import (
	"context"
	"encoding/json"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// List lists all sandboxes and containers of the node, by two concurrent calls.
func (c *Client) List(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	return c.list(ctx, "", nil)
}

// SandboxImage returns the image of a sandbox, as containerd and CRI-O report it in the verbose status; empty for other
// runtimes.
func (c *Client) SandboxImage(ctx context.Context, id string) (string, error) {
	resp, err := do(ctx, c.caller, "PodSandboxStatus", id, c.runtime.PodSandboxStatus,
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return "", err
	}
	return imageOf(resp.GetInfo()["info"]), nil
}

func imageOf(info string) string {
	var sandbox struct {
		Image string `json:"image"`
	}
	if json.Unmarshal([]byte(info), &sandbox) != nil {
		return ""
	}
	return sandbox.Image
}
