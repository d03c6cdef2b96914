package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/allocatable"
	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/nodefacts"
	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/podcgroups"
	"github.com/nodelet/nodelet/agent/podprobes"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/shutdown"
	"github.com/nodelet/nodelet/cni/manager"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/cri/images/records"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/cri/monitor"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/iptables"
	"github.com/nodelet/nodelet/kube/certs"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/objects"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/kube/status"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/metrics/exporter"
	"github.com/nodelet/nodelet/metrics/usage"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/plugins/dra"
	"github.com/nodelet/nodelet/probes"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// statusHold is how long a change of a pod's status waits for further changes, unless readiness changes or the pod
// ends.
const statusHold = 250 * time.Millisecond

// logLinks is where log collectors expect links to the logs of containers.
const logLinks = "/var/log/containers"

// nodelet holds the parts of one agent while they are wired together.
type nodelet struct {
	cfg *config.Config
	log *slog.Logger
	// verbosity is the level of log.
	verbosity *endpoints.Verbosity

	// api and events are clients of the API server with separate rate limits; nil on a node without one.
	api, events *client.Client
	identity    *certs.Client  // for the API server; nil without one
	serving     *certs.Serving // for the node's own server; nil if it is off
	runtime     *cri.Client
	node        *node.Reporter
	facts       *nodefacts.Facts
	resources   resources
	status      *status.Publisher
	recorder    *status.Recorder
	prober      *probes.Prober
	objects     *objects.Objects
	local       *objects.Local
	sources     *pods.Sources
	mirrors     *pods.Mirrors
	supervisor  *agent.Supervisor
	monitor     *monitor.Monitor
	records     *records.Store
	cgroups     *cgroups.Tree
	shutdown    *shutdown.Shutdown
	network     *manager.Manager
	rotator     *logs.Rotator
	served
	metrics   *exporter.Exporter
	meter     *instruments.Metrics
	usage     *usage.Collector
	volumes   *volumes.Manager
	podFS     *podfs.FS
	devices   *devices.Devices
	dra       *dra.DRA
	plugins   *plugins.Registry
	storage   *storage.Storage
	collector *images.Collector
	evictor   *eviction.Evictor
}

// resources are the parts that divide the machine.
type resources struct {
	allocatable *allocatable.Enforcer
	// placement is nil if the CPU, memory and topology managers are off.
	placement *placement.Manager
}

// assemble creates all parts and connects them. Nothing runs yet.
func assemble(cfg *config.Config, log *slog.Logger, level *endpoints.Verbosity) (*nodelet, error) {
	n := &nodelet{cfg: cfg, log: log, verbosity: level}
	steps := []func() error{n.makeMetrics, n.makeRuntime, n.makeIdentity, n.makeAPI, n.makeNode, n.makeServing, n.makePods,
		n.makeStorage, n.makePlugins, func() error { return makePlacement(n) }, n.makeAgent,
		n.makeNetwork, n.makeUsage, n.makeEvictor, n.makeShutdown, n.makeServer}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (n *nodelet) makeRuntime() (err error) {
	r := n.cfg.Runtime
	n.runtime, err = cri.Dial(r.Endpoint, cri.Options{
		ImageEndpoint: r.ImageEndpoint,
		Timeout:       r.RequestTimeout,
		Log:           n.log,
		Done:          n.metrics.Agent.RuntimeCall,
	})
	return err
}

// makeAPI creates the clients of the API server. Without a kubeconfig there are none.
func (n *nodelet) makeAPI() error {
	var core, events rest.Interface
	if n.identity != nil {
		rc := n.identity.Config()
		var err error
		agentName := "nodelet/" + config.KubeletVersion()
		if n.api, err = client.New(rc, n.cfg.API.QPS, n.cfg.API.Burst, agentName); err != nil {
			return err
		}
		if n.events, err = client.New(rc, n.cfg.API.EventQPS, n.cfg.API.EventBurst, agentName); err != nil {
			return err
		}
		core, events = n.api.Core, n.events.Core
	}
	n.status = status.New(status.Config{Client: core, Log: n.log, Hold: statusHold})
	n.recorder = status.NewRecorder(status.RecorderConfig{Client: events, Node: n.cfg.Node.Name, Log: n.log})
	return nil
}

func (n *nodelet) makeNode() (err error) {
	c := nodeConfig(n.cfg)
	c.Log = n.log
	c.Event = n.nodeEvent
	c.Changed = func(o *corev1.Node) {
		n.facts.Update(o, n.node.Allocatable())
		n.nodeSeen(o)
		n.network.SetPodCIDRs(podCIDRs(o))
		n.podCIDR(strings.Join(o.Spec.PodCIDRs, ","))
		if n.serving != nil {
			n.serving.AddressesChanged()
		}
	}
	var heartbeats *rest.Config
	if n.identity != nil {
		heartbeats = n.identity.HeartbeatConfig()
	}
	if n.node, err = node.New(c, n.api, heartbeats); err != nil {
		return err
	}
	if n.cgroups, err = cgroups.New(cgroups.Config{Root: n.cfg.Cgroups.Root, Driver: n.cfg.Cgroups.Driver}); err != nil {
		return err
	}
	if n.cfg.Node.Kernel.RefuseV1 && n.cgroups.Version() == 1 {
		return errCgroupV1
	}
	settings := nodeSettings(n.cfg)
	settings.CgroupV2 = n.cgroups.Version() == 2
	settings.Swap.Controller = n.cgroups.BoundsSwap()
	settings.Capacity = n.node.Capacity()
	n.facts = nodefacts.New(settings, n.cfg.Paths.ResolvConf, n.log)
	n.facts.Update(n.node.Node(), n.node.Allocatable())
	reserved := n.cfg.Reserved
	n.resources.allocatable = allocatable.New(allocatable.Config{
		Tree:     n.cgroups,
		PerQOS:   n.cfg.Cgroups.PerQOS,
		Enforce:  n.cfg.Cgroups.Enforce,
		System:   allocatable.Reservation{Resources: reserved.System, Cgroup: reserved.SystemCgroup},
		Kube:     allocatable.Reservation{Resources: reserved.Kube, Cgroup: reserved.KubeCgroup},
		Capacity: n.node.Capacity,
		Systemd:  func() bool { return n.facts.Spec().Cgroups.Systemd },
		Event:    n.nodeEvent,
		Log:      n.log,
	})
	n.makeMonitor()
	return nil
}

func (n *nodelet) nodeEvent(eventType, reason, message string) {
	n.recorder.NodeEvent(eventType, reason, message)
}

func (n *nodelet) podEvent(pod *corev1.Pod, eventType, reason, message string) {
	n.recorder.PodEvent(pod, "", eventType, reason, message)
}

// makePods creates the sources of pods and of the objects that they refer to.
func (n *nodelet) makePods() error {
	c := n.cfg
	n.sources = pods.New(pods.Config{
		NodeName:  c.Node.Name,
		API:       n.api != nil,
		Manifests: c.Paths.StaticPods,
		FileCheck: c.Pods.FileInterval,
		URL:       c.Pods.StaticURL,
		URLHeader: http.Header(c.Pods.StaticURLHeader),
		URLCheck:  c.Pods.HTTPInterval,
		Adopt:     n.running,
		Log:       n.log,
	})
	changed := n.wake
	if n.api != nil {
		n.objects = objects.New(objects.Config{
			Core:             n.api.Core,
			Node:             n.api.Node,
			CertificatesBeta: n.api.CertificatesBeta,
			TrustBundles:     c.Gate("ClusterTrustBundle") && c.Gate("ClusterTrustBundleProjection"),
			PodCertificates:  c.Gate("PodCertificateRequest"),
			NodeName:         c.Node.Name,
			NodeUID:          n.nodeUID,
			Event:            n.podEvent,
			OnChange:         changed,
			Log:              n.log,
		})
		n.mirrors = pods.NewMirrors(pods.MirrorConfig{
			API:      n.api.Core,
			NodeName: c.Node.Name,
			NodeUID:  n.nodeUID,
			Log:      n.log,
			Ending:   func(name types.NamespacedName, now types.UID) bool { return n.supervisor.Ending(name, now) },
		})
	}
	n.local = objects.NewLocal(n.objects, changed)
	return nil
}

// wake makes the workers of these pods sync again.
func (n *nodelet) wake(uids []types.UID) {
	for _, uid := range uids {
		n.supervisor.ObjectsChanged(uid)
	}
}

// nodeUID returns the UID of the Node object, which owns mirror pods.
func (n *nodelet) nodeUID(context.Context) (types.UID, error) {
	o := n.node.Node()
	if o.UID == "" || o.DeletionTimestamp != nil {
		return "", fmt.Errorf("node %q is not registered yet", o.Name)
	}
	return o.UID, nil
}

func (n *nodelet) makeAgent() error {
	c := n.cfg
	tree, err := logs.NewTree(c.Paths.PodLogs, logLinks)
	if err != nil {
		return err
	}
	n.makeCollector()
	puller, err := n.makePuller()
	if err != nil {
		return err
	}
	userNamespaces, err := n.makeUserNS()
	if err != nil {
		return err
	}
	var podCgroups interface {
		agent.Cgroups
		execute.Cgroups
	} = podcgroups.None{}
	if c.Cgroups.PerQOS {
		podCgroups = podcgroups.New(n.cgroups, n.facts.Spec)
	}
	var reserving agent.Placement
	var placed execute.Placement = execute.NoPlacement{}
	if n.resources.placement != nil {
		reserving, placed = n.resources.placement, n.resources.placement
	}
	steps := execute.New(execute.Backends{
		Runtime:        n.runtime,
		Images:         puller,
		Volumes:        n.volumes,
		PodFiles:       n.podFS,
		Logs:           tree,
		Cgroups:        podCgroups,
		Devices:        n.devices,
		Placement:      placed,
		Claims:         n.dra,
		UserNamespaces: userNamespaces,
		Objects:        func(pod *corev1.Pod) execute.Objects { return n.objectsFor(pod) },
		Events:         n.recorder,
		Metrics:        n.meter,
		Node:           n.facts.Spec,
		Handler:        n.handler,
	})
	n.prober = probes.New(probes.Config{
		Exec:    n.runtime.Output,
		Verdict: func(pod types.UID, _ probes.Verdict) { n.supervisor.VerdictChanged(pod) },
		Attempt: func(pod types.UID, a probes.Attempt) {
			n.metrics.ProbeAttempted(pod, a)
			if a.Reason != "" {
				n.supervisor.ProbeFailed(pod, a.Container, a.Reason, a.Message)
			}
		},
	})
	gone := func() {}
	if n.mirrors != nil {
		gone = n.mirrors.Wake
	}
	watchers := n.makePodsAPI(n.cfg, n.log)
	n.supervisor = agent.NewSupervisor(agent.Config{
		Backends: agent.Backends{
			Runtime:   n.runtime,
			Steps:     steps,
			PodFiles:  n.podFS,
			Volumes:   n.volumes,
			Cgroups:   podCgroups,
			Devices:   n.devices,
			Placement: reserving,
			Claims:    n.dra,
			Probes:    podprobes.New(n.prober),
			Objects:   func(pod *corev1.Pod) agent.Objects { return n.objectsFor(pod) },
			Status:    n.status,
			Events:    n.recorder,
			Metrics:   n.meter,
		},
		Node:              n.facts.Spec,
		NodeSeen:          n.node.Seen(),
		RuntimeName:       n.monitor.RuntimeName,
		RecursiveReadOnly: func(handler string) bool { return n.monitor.Features(handler).GetRecursiveReadOnlyMounts() },
		NetworkProblem:    func(uid types.UID) string { return n.network.PodProblem(string(uid)) },
		Admit:             n.admit,
		Doomed:            func(pod *corev1.Pod) *agent.Eviction { return n.shutdown.Interrupted(pod) },
		Gone:              gone,
		Watchers:          watchers,
		BackoffFirst:      c.CrashLoop.Initial,
		BackoffMax:        c.CrashLoop.Max,
		Log:               n.log,
	})
	return nil
}

// podObjects are the objects that pods refer to.
type podObjects interface {
	agent.Objects
	execute.Objects
}

// objectsFor returns the objects of the manifests for static pods, and those of the API server for all others.
func (n *nodelet) objectsFor(pod *corev1.Pod) podObjects {
	if n.objects == nil || podutil.IsStatic(pod) {
		return n.local
	}
	return n.objects
}

// admit decides whether a pod that is new on the node may run.
func (n *nodelet) admit(pod *corev1.Pod, others []*corev1.Pod) admission.Verdict {
	if r := n.refused(pod); r != nil {
		return admission.Verdict{Rejection: r}
	}
	return admission.Admit(pod, admission.Node{Object: n.node.Node(), Allocatable: n.podAllocatable()}, others)
}

// refused returns why the pod cannot run on this node, whatever else runs; nil if it can.
func (n *nodelet) refused(pod *corev1.Pod) *podstate.Rejection {
	if r := n.shutdown.Admit(pod); r != nil {
		return r
	}
	if r := n.evictor.Admit(pod); r != nil {
		return r
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		err := podfs.Supported(v)
		if err != nil {
			return &podstate.Rejection{Reason: "UnexpectedAdmissionError", Message: err.Error()}
		}
	}
	return admission.AdmitHost(pod, admission.Host{UnsafeSysctls: n.cfg.Pods.UnsafeSysctls, AppArmor: n.facts.AppArmor()})
}

// run runs all parts until ctx ends.
func (n *nodelet) run(ctx context.Context) error {
	n.shareRoot()
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var parts sync.WaitGroup
	start := func(run func(context.Context)) { parts.Go(func() { run(ctx) }) }
	n.shutdown.Resume(ctx)
	start(n.shutdown.Run)
	start(n.monitor.Run)
	defer n.runStorage(start)()
	start(n.devices.Run)
	if n.resources.placement != nil {
		start(n.resources.placement.Run)
	}
	start(n.dra.Run)
	start(n.plugins.Run)
	start(n.network.Run)
	start(n.prober.Run)
	start(n.status.Run)
	start(n.recorder.Run)
	start(n.sources.Run)
	start(n.deliver)
	start(func(ctx context.Context) {
		addr := netip.AddrPortFrom(n.cfg.Healthz.Addr, n.cfg.Healthz.Port)
		endpoints.ServeHealthz(ctx, addr, n.healthz(), n.log)
	})
	start(func(ctx context.Context) { serveCommands(ctx, n) })
	if n.server != nil {
		start(n.server.ListenAndRun)
	}
	if n.podsAPI != nil {
		start(n.podsAPI.Run)
	}
	start(n.rotator.Run)
	start(n.notify)
	start(trim)
	start(n.collector.Run)
	if n.cfg.Node.Kernel.IPTables {
		start(iptables.New(n.log).Run)
	}
	if n.cfg.Gate("CSIVolumeHealth") {
		start(n.usage.WatchHealth)
	}
	start(n.node.Run)
	if n.identity != nil {
		start(n.identity.Run)
	}
	if n.serving != nil {
		start(n.serving.Run)
	}
	if n.api != nil {
		start(n.mirrors.Run)
		start(func(ctx context.Context) { n.sources.FollowAPI(ctx, n.api.Core) })
		defer n.objects.Close()
	}
	var failure error
	start(func(ctx context.Context) {
		if failure = n.work(ctx); failure != nil {
			giveUp()
		}
	})
	<-ctx.Done()
	parts.Wait()
	return failure
}

// deliver passes each new set of pods to the parts that use it.
func (n *nodelet) deliver(ctx context.Context) {
	var problems []pods.Problem
	for {
		select {
		case <-ctx.Done():
			return
		case set := <-n.sources.Updates():
			n.reportProblems(problems, set.Problems)
			problems = set.Problems
			n.local.Set(set.ConfigMaps, set.Secrets)
			n.supervisor.Want(set)
			if n.mirrors != nil {
				n.mirrors.Keep(set)
			}
		}
	}
}
