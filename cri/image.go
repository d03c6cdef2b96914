package cri

import (
	"context"
	"encoding/json"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images calls the image service. Its methods are those of Client.
type images struct {
	*caller
	service runtimeapi.ImageServiceClient
}

// ListImages lists the images on the node.
func (i *images) ListImages(ctx context.Context) ([]*runtimeapi.Image, error) {
	return listed(ctx, i.caller, "ListImages", "",
		i.service.StreamImages, &runtimeapi.StreamImagesRequest{}, (*runtimeapi.StreamImagesResponse).GetImages,
		i.service.ListImages, &runtimeapi.ListImagesRequest{}, (*runtimeapi.ListImagesResponse).GetImages)
}

// ImageStatus returns the image that spec names, nil if it is not on the node.
func (i *images) ImageStatus(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	resp, err := do(ctx, i.caller, "ImageStatus", spec.GetImage(), i.service.ImageStatus,
		&runtimeapi.ImageStatusRequest{Image: spec})
	return resp.GetImage(), err
}

// PullImage pulls an image and returns the runtime's reference to it. It has no time limit but ctx; the CRI reports no
// progress, but runtimes cancel a pull that makes none. auth is nil for an anonymous pull.
func (i *images) PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig,
	sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	resp, err := doWithin(ctx, i.caller, op{"PullImage", spec.GetImage(), 0}, i.service.PullImage,
		&runtimeapi.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: sandbox})
	if err == nil && resp.ImageRef == "" {
		return "", &Error{Verb: "PullImage", Object: spec.GetImage(), Err: errNoID}
	}
	return resp.GetImageRef(), err
}

// RemoveImage removes an image by name or ID. It may be called for an image that is gone.
func (i *images) RemoveImage(ctx context.Context, image string) error {
	_, err := do(ctx, i.caller, "RemoveImage", image, i.service.RemoveImage,
		&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	return err
}

// ImageFsInfo returns the file systems of images and containers and their usage.
func (i *images) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return do(ctx, i.caller, "ImageFsInfo", "", i.service.ImageFsInfo, &runtimeapi.ImageFsInfoRequest{})
}

// ImagesInUse returns the images of all containers and of their image volumes, those of exited ones included, and that
// of new sandboxes: by ID and by each name that a container has for its image.
func (c *Client) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	containers, err := c.listContainers(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	used, listed := make(map[string]bool, len(containers)), make(map[any]bool, len(containers))
	for _, ctr := range containers {
		names, err := c.mountedImages(ctx, ctr.Id)
		if err != nil {
			return nil, err
		}
		listed[ctr.Id] = true
		for _, name := range slices.Concat(names, []string{ctr.ImageRef, ctr.ImageId, ctr.GetImage().GetImage()}) {
			if name != "" {
				used[name] = true
			}
		}
	}
	c.mounted.Range(func(id, _ any) bool {
		if !listed[id] {
			c.mounted.Delete(id)
		}
		return true
	})
	pause, err := c.pauseImage(ctx)
	if pause != nil {
		used[pause.Id] = true
	}
	return used, err
}

// pauseImage returns the image of new sandboxes: nil if it is not on the node, or the runtime does not name it.
// containerd before 1.6.22 and 1.7.3 does not pin it, and some later versions not one that was on the node before.
func (c *Client) pauseImage(ctx context.Context) (*runtimeapi.Image, error) {
	info, err := c.Info(ctx)
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	_ = json.Unmarshal([]byte(info["config"]), &config) // of another runtime, or none
	if err != nil || config.SandboxImage == "" {
		return nil, err
	}
	return c.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: config.SandboxImage})
}

// mountedImages returns the images of a container's image volumes. They never change: the first status of the container
// says which they are.
func (c *Client) mountedImages(ctx context.Context, id string) ([]string, error) {
	if known, has := c.mounted.Load(id); has {
		return known.([]string), nil
	}
	status, err := orGone(c.containerStatus(ctx, id))
	return imageVolumes(status), err
}

// imageVolumes returns the images of a container's image volumes.
func imageVolumes(status *runtimeapi.ContainerStatus) (names []string) {
	for _, m := range status.GetMounts() {
		if name := m.GetImage().GetImage(); name != "" {
			names = append(names, name)
		}
	}
	return names
}
