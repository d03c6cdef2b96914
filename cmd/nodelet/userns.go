package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"os/user"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/userns"
	"github.com/nodelet/nodelet/volumes"
)

// makeUserNS makes the table of the user namespaces of pods, with what the pods on the disk have.
func (n *nodelet) makeUserNS(vols *volumes.Volumes) (*userns.Table, error) {
	pool, err := subordinateIDs()
	if err != nil {
		return nil, err
	}
	uids, err := vols.Pods()
	if err != nil {
		return nil, err
	}
	table, bad, err := userns.New(userns.Config{
		IDsPerPod: uint32(n.cfg.Pods.UserNamespaceSize), Pool: pool, MaxPods: n.cfg.Node.MaxPods,
		Read:  func(pod types.UID) ([]byte, error) { return vols.ReadPodFile(pod, userns.File) },
		Write: func(pod types.UID, content []byte) error { return vols.WritePodFile(pod, userns.File, content) },
	}, uids)
	for _, trouble := range bad {
		n.log.Warn("a pod's user namespace cannot be read; the pod keeps what runs, but nothing new starts in it", "err", trouble)
	}
	return table, err
}

// subordinateIDs are the IDs set aside for the user kubelet, as getsubids(1) tells them; none where there is no such
// user or no such program, as with the kubelet: then all IDs but the host's own serve.
func subordinateIDs() (userns.Range, error) {
	const name = "kubelet"
	var unknown user.UnknownUserError
	if _, err := user.Lookup(name); errors.As(err, &unknown) {
		return userns.Range{}, nil
	}
	program, err := exec.LookPath("getsubids")
	if err != nil {
		return userns.Range{}, nil
	}
	uids, err := exec.Command(program, name).Output()
	if err != nil {
		return userns.Range{}, fmt.Errorf("getsubids %s: %w; give the user kubelet a range in /etc/subuid, or remove the user", name, err)
	}
	gids, err := exec.Command(program, "-g", name).Output()
	if err != nil {
		return userns.Range{}, fmt.Errorf("getsubids -g %s: %w; give the user kubelet a range in /etc/subgid, or remove the user", name, err)
	}
	if !bytes.Equal(uids, gids) {
		return userns.Range{}, errors.New("the user kubelet has different ranges in /etc/subuid and /etc/subgid; make them the same")
	}
	return userns.ParseSubIDs(string(uids))
}
