package main

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/userns"
)

// makeUserNS builds the table of user namespaces from the files of the pods on disk.
func (n *nodelet) makeUserNS() (*userns.Table, error) {
	pool, err := userns.SubordinateIDs()
	if err != nil {
		return nil, err
	}
	uids, err := n.podFS.Pods()
	if err != nil {
		return nil, err
	}
	table, bad, err := userns.New(userns.Config{
		IDsPerPod: uint32(n.cfg.Pods.UserNamespaceSize), Pool: pool, MaxPods: n.cfg.Node.MaxPods,
		Read:  func(pod types.UID) ([]byte, error) { return n.podFS.ReadPodFile(pod, userns.File) },
		Write: func(pod types.UID, content []byte) error { return n.podFS.WritePodFile(pod, userns.File, content) },
	}, uids)
	for _, trouble := range bad {
		n.log.Warn("cannot read a pod's user namespace; its containers keep running, but no new ones start", "err", trouble)
	}
	return table, err
}
