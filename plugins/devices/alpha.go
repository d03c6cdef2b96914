package devices

import (
	"context"
	"path"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesalpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// alphaLister serves version v1alpha1 of the pod resources API, which old exporters of metrics still use.
type alphaLister struct {
	podresourcesalpha.UnimplementedPodResourcesListerServer
	lister *lister
}

// List returns the devices of device plugins that the pods have; the version knows nothing else.
func (a *alphaLister) List(ctx context.Context,
	_ *podresourcesalpha.ListPodResourcesRequest) (*podresourcesalpha.ListPodResourcesResponse, error) {
	all, err := a.lister.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	out := &podresourcesalpha.ListPodResourcesResponse{}
	for _, pod := range all.PodResources {
		one := &podresourcesalpha.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for _, c := range pod.Containers {
			one.Containers = append(one.Containers, alphaContainer(c))
		}
		out.PodResources = append(out.PodResources, one)
	}
	return out, nil
}

func alphaContainer(c *podresources.ContainerResources) *podresourcesalpha.ContainerResources {
	out := &podresourcesalpha.ContainerResources{Name: c.Name}
	for _, d := range c.Devices {
		out.Devices = append(out.Devices, &podresourcesalpha.ContainerDevices{
			ResourceName: d.ResourceName,
			DeviceIds:    d.DeviceIds,
		})
	}
	return out
}

// resourcesServer serves both versions of the pod resources API and counts its calls.
func (d *Devices) resourcesServer() *grpc.Server {
	l := &lister{d: d}
	versions := map[any]string{}
	alpha := &alphaLister{lister: l}
	versions[l], versions[alpha] = "v1", "v1alpha1"
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler) (any, error) {
		answer, err := handle(ctx, request)
		d.cfg.Asked(versions[info.Server], path.Base(info.FullMethod), err)
		return answer, err
	}))
	podresources.RegisterPodResourcesListerServer(server, l)
	podresourcesalpha.RegisterPodResourcesListerServer(server, alpha)
	return server
}
