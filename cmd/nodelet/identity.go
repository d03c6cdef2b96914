package main

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/certs"
	"github.com/nodelet/nodelet/systemd"
)

// makeIdentity reads the node's certificates or prepares to request them. Without a kubeconfig there are none.
func (n *nodelet) makeIdentity() (err error) {
	p := n.cfg.Paths
	if p.Kubeconfig == "" {
		if p.BootstrapKubeconfig != "" {
			return errors.New("--bootstrap-kubeconfig needs --kubeconfig: " +
				"the file that is written when the node has its certificate")
		}
		return nil
	}
	n.identity, err = certs.NewClient(certs.ClientConfig{
		Kubeconfig: p.Kubeconfig, Bootstrap: p.BootstrapKubeconfig, Dir: p.Certificates, Node: n.cfg.Node.Name,
		Rotate: n.cfg.API.RotateCerts, UserAgent: "nodelet/" + config.KubeletVersion(), Log: n.log,
		Say: func(line string) { _ = systemd.Notify(systemd.Status(line)) },
	})
	return err
}

// makeServing provides the certificate of the node's own server.
func (n *nodelet) makeServing() (err error) {
	if n.cfg.Server.Port == 0 {
		return nil
	}
	s := n.cfg.Server
	c := certs.ServingConfig{
		CertFile:  s.CertFile,
		KeyFile:   s.KeyFile,
		Bootstrap: s.TLSBootstrap,
		Dir:       n.cfg.Paths.Certificates,
		Node:      n.cfg.Node.Name,
		Addresses: func() []corev1.NodeAddress { return n.node.Node().Status.Addresses }, Log: n.log,
	}
	if n.api != nil {
		c.API = n.api.Certificates
	}
	n.serving, err = certs.NewServing(c)
	return err
}
