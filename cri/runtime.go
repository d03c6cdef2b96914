package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version returns the runtime's name and version; see VersionWarnings.
func (c *Client) Version(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	return do(ctx, c.caller, "Version", "", c.runtime.Version, &runtimeapi.VersionRequest{})
}

// Status returns the runtime's conditions (RuntimeReady, NetworkReady), its runtime handlers and its features.
func (c *Client) Status(ctx context.Context) (*runtimeapi.StatusResponse, error) {
	return do(ctx, c.caller, "Status", "", c.runtime.Status, &runtimeapi.StatusRequest{})
}

// Info returns what the runtime reports beyond the CRI's fields: for containerd, its configuration as JSON in "config".
func (c *Client) Info(ctx context.Context) (map[string]string, error) {
	s, err := do(ctx, c.caller, "Status", "verbose", c.runtime.Status, &runtimeapi.StatusRequest{Verbose: true})
	return s.GetInfo(), err
}

// RuntimeConfig returns the cgroup driver of the runtime. Runtimes older than this call answer with an error that
// IsUnimplemented reports.
func (c *Client) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return do(ctx, c.caller, "RuntimeConfig", "", c.runtime.RuntimeConfig, &runtimeapi.RuntimeConfigRequest{})
}

// UpdateRuntimeConfig passes the node's pod CIDR to the runtime.
func (c *Client) UpdateRuntimeConfig(ctx context.Context, podCIDR string) error {
	_, err := do(ctx, c.caller, "UpdateRuntimeConfig", podCIDR, c.runtime.UpdateRuntimeConfig,
		&runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{
			NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: podCIDR},
		}})
	return err
}

// RunPodSandbox creates and starts a pod sandbox and returns its ID. It has twice the usual time, as with the kubelet.
// After an error the sandbox may exist nevertheless. A second call with the same attempt in cfg then fails with
// containerd, and returns the ID of that sandbox with CRI-O.
func (c *Client) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	pod := cfg.GetMetadata()
	object := fmt.Sprintf("%s/%s#%d", pod.GetNamespace(), pod.GetName(), pod.GetAttempt())
	o := op{"RunPodSandbox", object, 2 * c.timeout}
	resp, err := doWithin(ctx, c.caller, o, c.runtime.RunPodSandbox,
		&runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	if err == nil && resp.PodSandboxId == "" {
		return "", &Error{Verb: o.verb, Object: object, Err: errNoID}
	}
	return resp.GetPodSandboxId(), err
}

// StopPodSandbox kills what still runs in a sandbox and removes its network. It may be repeated, and be called for a
// sandbox that is gone.
func (c *Client) StopPodSandbox(ctx context.Context, id string) error {
	_, err := do(ctx, c.caller, "StopPodSandbox", id, c.runtime.StopPodSandbox,
		&runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

// RemovePodSandbox removes a sandbox and its containers. It may be repeated, and be called for a sandbox that is gone.
func (c *Client) RemovePodSandbox(ctx context.Context, id string) error {
	_, err := do(ctx, c.caller, "RemovePodSandbox", id, c.runtime.RemovePodSandbox,
		&runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// UpdatePodSandboxResources passes the sum of a pod's resources to the runtime and its plugins after a resize.
func (c *Client) UpdatePodSandboxResources(ctx context.Context,
	req *runtimeapi.UpdatePodSandboxResourcesRequest) error {
	_, err := do(ctx, c.caller, "UpdatePodSandboxResources", req.PodSandboxId,
		c.runtime.UpdatePodSandboxResources, req)
	return err
}

// PortForward returns the URL at which the runtime serves a port-forward stream.
func (c *Client) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (string, error) {
	resp, err := do(ctx, c.caller, "PortForward", req.PodSandboxId, c.runtime.PortForward, req)
	return resp.GetUrl(), err
}

// SandboxIDs returns the set of the IDs of all sandboxes, in any state.
func (c *Client) SandboxIDs(ctx context.Context) (map[string]bool, error) {
	all, err := c.listSandboxes(ctx, "", nil)
	ids := make(map[string]bool, len(all))
	for _, s := range all {
		ids[s.Id] = true
	}
	return ids, err
}

func (c *Client) listSandboxes(ctx context.Context, object string,
	labels map[string]string) ([]*runtimeapi.PodSandbox, error) {
	filter := &runtimeapi.PodSandboxFilter{LabelSelector: labels}
	return listed(ctx, c.caller, "ListPodSandbox", object,
		c.runtime.StreamPodSandboxes, &runtimeapi.StreamPodSandboxesRequest{Filter: filter},
		(*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes,
		c.runtime.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: filter},
		(*runtimeapi.ListPodSandboxResponse).GetItems)
}

// sandboxStatus returns the status of a sandbox for a snapshot, without the labels and annotations: nobody reads them
// there, and they may be as large as the rest of the pod.
func (c *Client) sandboxStatus(ctx context.Context, id string) (*runtimeapi.PodSandboxStatus, error) {
	resp, err := do(ctx, c.caller, "PodSandboxStatus", id, c.runtime.PodSandboxStatus,
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return nil, err
	}
	if resp.Status == nil {
		return nil, &Error{Verb: "PodSandboxStatus", Object: id, Err: errNoStatus}
	}
	resp.Status.Labels, resp.Status.Annotations = nil, nil
	return resp.Status, nil
}

// SandboxImage returns the image of a sandbox, as containerd and CRI-O report it in the verbose status; empty for other
// runtimes.
func (c *Client) SandboxImage(ctx context.Context, id string) (string, error) {
	resp, err := do(ctx, c.caller, "PodSandboxStatus", id, c.runtime.PodSandboxStatus,
		&runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	var info struct {
		Image string `json:"image"`
	}
	decode(resp.GetInfo(), &info)
	return info.Image, err
}

// decode decodes what containerd and CRI-O add to a verbose status. Of another runtime it decodes nothing.
func decode(info map[string]string, into any) { _ = json.Unmarshal([]byte(info["info"]), into) }

// LayerDir returns the directory of the writable layer of a container, which is beside the root directory that CRI-O
// reports in the verbose status; empty for other runtimes, and for other storage drivers than overlay.
func (c *Client) LayerDir(ctx context.Context, id string) (string, error) {
	resp, err := do(ctx, c.caller, "ContainerStatus", id, c.runtime.ContainerStatus,
		&runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	var info struct {
		RuntimeSpec struct {
			Root struct {
				Path string `json:"path"`
			} `json:"root"`
		} `json:"runtimeSpec"`
	}
	decode(resp.GetInfo(), &info)
	layer, merged := strings.CutSuffix(info.RuntimeSpec.Root.Path, "/merged")
	if !merged {
		return "", err
	}
	return layer + "/diff", err
}

// CgroupDriver returns the runtime's driver in the spelling of KubeletConfiguration's cgroupDriver.
func CgroupDriver(c *runtimeapi.LinuxRuntimeConfiguration) string {
	if c.GetCgroupDriver() == runtimeapi.CgroupDriver_CGROUPFS {
		return "cgroupfs"
	}
	return "systemd"
}
