package main

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/certs"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/status"
)

// apiServer is the connection to the API server, and what is published there.
type apiServer struct {
	// identity are the node's certificates; nil if the node is standalone. Then client has no connections.
	identity *certs.Client
	client   *client.Client
	status   interface {
		agent.Status
		Unsent() bool
	}
	recorder *status.Recorder
}

// newAPIServer makes the clients of the API server, which have separate rate limits. Without a kubeconfig there are
// none: statuses are not published, and events are only logged.
func newAPIServer(p *process, x *parts) (err error) {
	a := &apiServer{client: &client.Client{}, status: status.None{}}
	var events rest.Interface
	if a.identity, err = newIdentity(p); err != nil {
		return err
	}
	if !a.standalone() {
		k, name := &p.cfg.Kubelet, config.UserAgent()
		if a.client, err = client.New(a.identity.Config(), float32(*k.KubeAPIQPS), int(k.KubeAPIBurst), name); err != nil {
			return err
		}
		forEvents, err := client.New(a.identity.Config(), p.cfg.EventQPS(), int(k.EventBurst), name)
		if err != nil {
			return err
		}
		events = forEvents.Core
		p.Start(a.identity.Run)
		p.metrics.AddClientCertificate(a.identity)
		publisher := status.New(status.Config{
			Client:    a.client.Core,
			Log:       p.log,
			Hold:      status.Hold,
			Published: p.instruments.StatusPublished,
		})
		a.status = publisher
		p.Start(publisher.Run)
	}
	a.recorder = status.NewRecorder(status.RecorderConfig{
		Client:  events,
		Node:    p.cfg.Node.Name,
		NodeUID: func() types.UID { return x.machine.node.Node().UID },
		Log:     p.log,
	})
	p.Start(a.recorder.Run)
	x.api = a
	return nil
}

// standalone reports whether the node has no API server.
func (a *apiServer) standalone() bool { return a.identity == nil }

// podEvent records an event about a pod.
func (a *apiServer) podEvent(pod *corev1.Pod, eventType, reason, message string) {
	a.recorder.PodEvent(pod, "", eventType, reason, message)
}

// newIdentity reads the node's certificates or prepares to request them. Without a kubeconfig there are none.
func newIdentity(p *process) (*certs.Client, error) {
	c := certs.ClientSettings(p.cfg)
	if c.Kubeconfig == "" {
		return nil, nil
	}
	c.Say = p.line.SetWait
	c.Log = p.log
	return certs.NewClient(c)
}

// newServing provides the certificate of the node's own server; nil if the server is off.
func newServing(p *process, x *parts) (err error) {
	if p.cfg.Server().Port() == 0 {
		return nil
	}
	c := certs.ServingSettings(p.cfg)
	c.Addresses = func() []corev1.NodeAddress { return x.machine.node.Node().Status.Addresses }
	c.Log = p.log
	c.API = x.api.client.Certificates
	c.Rotated = p.metrics.AddRotations()
	if x.serving, err = certs.NewServing(c); err != nil {
		return err
	}
	x.nodeChanged = append(x.nodeChanged, func(*corev1.Node) { x.serving.NodeChanged() })
	p.Start(x.serving.Run)
	p.metrics.AddServingCertificate(x.serving)
	return nil
}
