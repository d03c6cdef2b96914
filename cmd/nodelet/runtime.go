package main

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/cni/manager"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/cri/images/provider"
	"github.com/nodelet/nodelet/cri/images/records"
	"github.com/nodelet/nodelet/cri/monitor"
	"github.com/nodelet/nodelet/kube/status"
)

// containerRuntime is the container runtime and its images.
type containerRuntime struct {
	client    *cri.Client
	monitor   *monitor.Monitor
	collector *images.Collector
	puller    *images.Puller
}

func newRuntime(p *process, x *parts) error {
	endpoint := p.cfg.Kubelet.ContainerRuntimeEndpoint
	client, err := cri.Dial(endpoint, cri.Options{
		ImageEndpoint: p.cfg.Kubelet.ImageServiceEndpoint,
		Timeout:       p.cfg.Kubelet.RuntimeRequestTimeout.Duration,
		StreamLists:   p.cfg.Gate("CRIListStreaming"),
		Log:           p.log,
		Done:          p.metrics.Agent.RuntimeCall,
	})
	if err != nil {
		return err
	}
	r := &containerRuntime{client: client}
	r.monitor = monitor.New(monitor.Config{
		Client:   client,
		Endpoint: endpoint,
		Report: func(v *runtimeapi.VersionResponse, s *runtimeapi.StatusResponse) bool {
			return x.machine.node.RuntimeAnswered(v, s, x.network.Problem)
		},
		Ready: func() { x.supervisor.RuntimeReady() },
		Images: func(all []*runtimeapi.Image, requested time.Time) {
			x.machine.node.SetImages(all)
			r.puller.Listed(all, requested)
		},
		Log: p.log,
	})
	collect := images.CollectorSettings(p.cfg)
	collect.Event = x.api.recorder.NodeEvent
	collect.Removed = r.monitor.ImagesChanged
	collect.Collected = p.metrics.AddImageCollection()
	collect.Log = p.log
	r.collector = images.NewCollector(client, collect)
	x.nodeChanged = append(x.nodeChanged, func(o *corev1.Node) {
		cidr := strings.Join(o.Spec.PodCIDRs, ",")
		if x.api.standalone() {
			cidr = cmp.Or(cidr, p.cfg.Kubelet.PodCIDR)
		}
		r.monitor.SetPodCIDR(cidr) // the runtime may generate its network configuration from it
	})
	p.Start(r.monitor.Run)
	p.Start(r.collector.Run)
	x.runtime = r
	return nil
}

// newPuller sets up the pulls of images, and the records of who may use them.
func newPuller(p *process, x *parts) error {
	r, local := x.runtime, x.objects.local
	c := provider.Settings(p.cfg)
	c.Account, c.Token = local.ServiceAccount, local.AccountToken
	configured, ran := p.metrics.AddCredentialProviders()
	c.Ran = ran
	c.Log = p.log
	providers, err := provider.New(c)
	if err != nil {
		return err
	}
	if providers.Hash != "" {
		configured(providers.Hash)
	}
	pull := images.Settings(p.cfg)
	if k := &p.cfg.Kubelet; p.cfg.Gate("KubeletEnsureSecretPulledImages") {
		pull.Records, err = records.Open(p.cfg.Paths.Root, k.ImagePullCredentialsVerificationPolicy,
			k.PreloadedImagesVerificationAllowlist, p.log)
		if err != nil {
			return err
		}
	}
	pull.Providers = providers.Ask
	pull.Wanted = r.collector.Wanted
	pull.Pulled = r.monitor.ImagesChanged
	pull.Log = p.log
	r.puller = images.New(r.client, pull)
	return nil
}

// newNetwork makes what watches the pods' network, or is it.
func newNetwork(p *process, x *parts) error {
	c := manager.Settings(p.cfg)
	c.Core = x.api.client.Core
	c.Runtime = x.runtime.client
	c.Answered = x.runtime.monitor.Answered()
	c.CheckSoon = x.runtime.monitor.CheckSoon
	c.Event = func(pod cni.Pod, eventType, reason, message string) {
		ref := status.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
		x.api.recorder.Event(ref, eventType, reason, message)
	}
	c.PodChanged = func(uid string) { x.supervisor.ProbeChanged(types.UID(uid)) }
	c.Called, c.Released = p.metrics.AddNetwork()
	c.Log = p.log
	x.network = manager.New(c)
	x.nodeChanged = append(x.nodeChanged, func(o *corev1.Node) { x.network.SetPodCIDRs(o.Spec.PodCIDRs) })
	p.Start(x.network.Run)
	return nil
}
