package devices

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesalpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/plugins/devices/checkpoint"
)

// lister serves the pod resources API.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	d *Devices
}

// pods returns the pods that have not terminated. One that no source has any more is left out if it holds nothing: a
// client that looks it up at the API server would not find it.
func (l *lister) pods(ctx context.Context) ([]*corev1.Pod, error) {
	known, gone, err := l.d.cfg.Pods(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	gone = slices.DeleteFunc(gone, func(pod *corev1.Pod) bool { return holdsNothing(l.d.podResources(pod)) })
	return append(known, gone...), nil
}

// holdsNothing reports whether a pod has nothing that it would keep from others.
func holdsNothing(has *podresources.PodResources) bool {
	return len(has.CpuIds)+len(has.Memory) == 0 &&
		!slices.ContainsFunc(has.Containers, func(c *podresources.ContainerResources) bool {
			return len(c.Devices)+len(c.CpuIds)+len(c.Memory)+len(c.DynamicResources) > 0
		})
}

// List returns all pods that have not terminated.
func (l *lister) List(ctx context.Context,
	_ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	pods, err := l.pods(ctx)
	if err != nil {
		return nil, err
	}
	out := &podresources.ListPodResourcesResponse{}
	for _, pod := range pods {
		out.PodResources = append(out.PodResources, l.d.podResources(pod))
	}
	return out, nil
}

// Get returns one pod.
func (l *lister) Get(ctx context.Context,
	q *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	pods, err := l.pods(ctx)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if pod.Name == q.PodName && pod.Namespace == q.PodNamespace {
			return &podresources.GetPodResourcesResponse{PodResources: l.d.podResources(pod)}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", q.PodName, q.PodNamespace)
}

// GetAllocatableResources returns all healthy devices, allocated or not, and the CPUs and memory that containers can
// have for themselves.
func (l *lister) GetAllocatableResources(context.Context,
	*podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	all := l.d.cfg.Exclusive.All()
	out := &podresources.AllocatableResourcesResponse{CpuIds: all.CPUs, Memory: all.Memory}
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.d.resources)) {
		r := l.d.resources[name]
		out.Devices = append(out.Devices, containerDevices(name, l.d.byNUMA(name, r.healthy()))...)
	}
	return out, nil
}

// podResources returns what a pod and its containers have; init containers pass their devices on.
func (d *Devices) podResources(pod *corev1.Pod) *podresources.PodResources {
	whole := d.cfg.Exclusive.OfPod(pod.UID)
	out := &podresources.PodResources{
		Name:      pod.Name,
		Namespace: pod.Namespace,
		CpuIds:    whole.CPUs,
		Memory:    whole.Memory,
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	given := d.slotsOf(pod.UID)
	for _, c := range podutil.AppsAndSidecars(&pod.Spec) {
		own := d.cfg.Exclusive.OfContainer(pod, c)
		one := &podresources.ContainerResources{Name: c.Name, CpuIds: own.CPUs, Memory: own.Memory}
		for _, s := range given {
			if a := d.given[s]; s.container == c.Name && a.settled() {
				one.Devices = append(one.Devices, containerDevices(s.resource, a.ids)...)
			}
		}
		one.DynamicResources = d.cfg.Claims(pod, c)
		out.Containers = append(out.Containers, one)
	}
	return out
}

// containerDevices returns one entry for each device and NUMA node, as the kubelet does.
func containerDevices(name string, ids checkpoint.DevicesPerNUMA) (out []*podresources.ContainerDevices) {
	for _, node := range slices.Sorted(maps.Keys(ids)) {
		for _, id := range slices.Sorted(slices.Values(ids[node])) {
			one := &podresources.ContainerDevices{ResourceName: name, DeviceIds: []string{id}}
			if node != checkpoint.WithoutNUMA {
				one.Topology = &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: node}}}
			}
			out = append(out, one)
		}
	}
	return out
}

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

// callsPerSecond and callsAtOnce bound the calls of the pod resources API, as in the kubelet.
const callsPerSecond, callsAtOnce = 100, 10

// errTooMany has the kubelet's text, with which clients compare it.
var errTooMany = status.Error(codes.ResourceExhausted, "rejected by rate limit")

// server serves both versions of the pod resources API and counts its calls. It refuses those that are too many.
func (l *lister) server() *grpc.Server {
	versions := map[any]string{}
	alpha := &alphaLister{lister: l}
	versions[l], versions[alpha] = "v1", "v1alpha1"
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler) (any, error) {
		if !l.d.cfg.Limiter.TryAccept() {
			return nil, errTooMany
		}
		answer, err := handle(ctx, request)
		l.d.cfg.Asked(versions[info.Server], path.Base(info.FullMethod), err)
		return answer, err
	}))
	podresources.RegisterPodResourcesListerServer(server, l)
	podresourcesalpha.RegisterPodResourcesListerServer(server, alpha)
	return server
}
