package cri

import (
	"context"
	"encoding/json"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// List lists all sandboxes and containers of the node, with two calls side by side.
func (c *Client) List(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	return c.list(ctx, "", nil)
}

// SandboxImage is the image that a sandbox was made from, as containerd and CRI-O tell it in the verbose status; empty
// where the runtime does not.
func (c *Client) SandboxImage(ctx context.Context, id string) (string, error) {
	resp, err := do(ctx, c, op{"PodSandboxStatus", id, c.timeout}, c.runtime.PodSandboxStatus,
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return "", err
	}
	return imageOf(resp.GetInfo()["info"]), nil
}

func imageOf(info string) string {
	var told struct {
		Image string `json:"image"`
	}
	if json.Unmarshal([]byte(info), &told) != nil {
		return ""
	}
	return told.Image
}
