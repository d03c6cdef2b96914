package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
	"github.com/nodelet/nodelet/kube/client"
)

const (
	nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"
	// nodeTime is how long a registration waits for the Node.
	nodeTime   = 20 * time.Second
	writeTries = 5
	// checkInterval is how often the CSINode and the Node are compared with the registered drivers.
	checkInterval = 5 * time.Minute
)

// migrated are the in-tree plugins that CSI drivers replace on this node.
var migrated = []string{
	"kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/azure-file", "kubernetes.io/cinder",
	"kubernetes.io/gce-pd", "kubernetes.io/portworx-volume", "kubernetes.io/vsphere-volume",
}

// NodeDriver is what a CSI driver says about this node.
type NodeDriver struct {
	Name, NodeID string
	MaxVolumes   int64 // 0: no limit
	Topology     map[string]string
}

// Run creates the CSINode, owned by the current Node object, and again after the Node was replaced, with the drivers
// that are registered, until ctx is done. What the API server has lost of them it writes again: etcd may be restored
// from a backup, and somebody may delete the CSINode.
func (s *Storage) Run(ctx context.Context) {
	var pause backoff.Backoff
	check := time.NewTimer(periodic.Until(checkInterval))
	defer check.Stop()
	for owner := types.UID(""); ; {
		seen := s.next()
		if n := s.cfg.Node(); n.UID != "" && n.UID != owner {
			err := s.restore(ctx)
			if owner == "" { // after a replacement, the node stays Ready meanwhile, as with the kubelet
				s.report(err)
			}
			if err != nil {
				s.cfg.Log.Warn("cannot create this node's CSINode, retrying", "err", err)
				if !backoff.Sleep(ctx, pause.Next(0)) {
					return
				}
				continue
			}
			owner = n.UID
		}
		select {
		case <-ctx.Done():
			return
		case <-seen:
		case <-check.C:
			check.Reset(periodic.Until(checkInterval))
			if owner != "" {
				s.check(ctx)
			}
		}
	}
}

// check restores what is lost. After an error it waits for the next time: an API server may be away for long. That the
// Node was deleted is logged elsewhere.
func (s *Storage) check(ctx context.Context) {
	if err := s.restore(ctx); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.cfg.Log.Warn("cannot compare this node's CSINode with its CSI drivers, trying again",
			"err", err, "retryIn", checkInterval)
	}
}

// report tells whether the CSINode exists: err is why not.
func (s *Storage) report(err error) {
	if err != nil {
		err = fmt.Errorf("failed to initialize CSINode: %w", err)
	}
	s.cfg.Problem(err)
}

// restore writes the drivers that are registered into the Node and the CSINode, which may lack them.
func (s *Storage) restore(ctx context.Context) error {
	return errors.Join(s.labelNode(ctx, s.nodeDrivers), s.writeCSINode(ctx, func(n *storagev1.CSINode) {
		for _, d := range s.nodeDrivers() { // one may have gone meanwhile
			d.addTo(n)
		}
	}))
}

// nodeDrivers returns the registered drivers by name.
func (s *Storage) nodeDrivers() []NodeDriver {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(s.registered))
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// SetDriver adds a driver to the CSINode, and its topology to the labels of the Node. Each request has a time limit of
// its own, also while another driver waits for its turn.
func (s *Storage) SetDriver(ctx context.Context, d NodeDriver) error {
	if err := s.awaitNode(ctx); err != nil {
		return err
	}
	if err := s.labelNode(ctx, func() []NodeDriver { return []NodeDriver{d} }); err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	if err := s.writeCSINode(ctx, d.addTo); err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered[d.Name] = d
	return nil
}

// awaitNode waits until the Node is registered: running drivers register while the agent starts.
func (s *Storage) awaitNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTime)
	defer cancel()
	for {
		seen := s.next()
		if s.cfg.Node().UID != "" {
			return nil
		}
		select {
		case <-seen:
		case <-ctx.Done():
			return fmt.Errorf("node %q is not registered yet", s.cfg.NodeName)
		}
	}
}

// RemoveDriver removes a driver from the CSINode, and its node ID from the Node.
func (s *Storage) RemoveDriver(ctx context.Context, name string) error {
	return errors.Join(s.removeEntry(ctx, name), s.removeID(ctx, name))
}

func (s *Storage) removeEntry(ctx context.Context, name string) error {
	s.mu.Lock()
	delete(s.registered, name)
	s.mu.Unlock()
	return s.writeCSINode(ctx, func(n *storagev1.CSINode) {
		n.Spec.Drivers = slices.DeleteFunc(n.Spec.Drivers, named(name))
	})
}

func named(name string) func(storagev1.CSINodeDriver) bool {
	return func(d storagev1.CSINodeDriver) bool { return d.Name == name }
}

// addTo adds the driver to the CSINode, in place of an earlier entry.
func (d NodeDriver) addTo(n *storagev1.CSINode) {
	if i := slices.IndexFunc(n.Spec.Drivers, named(d.Name)); i >= 0 {
		n.Spec.Drivers[i] = d.entry()
		return
	}
	n.Spec.Drivers = append(n.Spec.Drivers, d.entry())
}

func (d NodeDriver) entry() storagev1.CSINodeDriver {
	e := storagev1.CSINodeDriver{Name: d.Name, NodeID: d.NodeID, TopologyKeys: slices.Sorted(maps.Keys(d.Topology))}
	if d.MaxVolumes > 0 {
		count := int32(min(d.MaxVolumes, math.MaxInt32))
		e.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	}
	return e
}

// writeCSINode creates or changes the CSINode. One that belongs to an earlier Node of this name is replaced.
func (s *Storage) writeCSINode(ctx context.Context, change func(*storagev1.CSINode)) error {
	s.csiNode.Lock()
	defer s.csiNode.Unlock()
	var pause backoff.Backoff
	for try := 1; ; try++ {
		err := s.tryCSINode(ctx, change)
		if apierrors.IsInvalid(err) { // of an entry, only the limit can change: it has an earlier node ID or topology
			if err = s.tryCSINode(ctx, unchanged(change)); err == nil {
				err = s.tryCSINode(ctx, change)
			}
		}
		retry := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, errStaleOwner)
		if err == nil || !retry || try == writeTries || !backoff.Sleep(ctx, pause.Next(0)) {
			return err
		}
	}
}

// unchanged returns a change that removes the entries which another one would replace.
func unchanged(change func(*storagev1.CSINode)) func(*storagev1.CSINode) {
	return func(n *storagev1.CSINode) {
		next := n.DeepCopy()
		change(next)
		n.Spec.Drivers = slices.DeleteFunc(n.Spec.Drivers, func(old storagev1.CSINodeDriver) bool {
			return !slices.ContainsFunc(next.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
				return equality.Semantic.DeepEqual(old, d)
			})
		})
	}
}

var errStaleOwner = errors.New("the owner of the CSINode is an earlier Node of this name")

func (s *Storage) tryCSINode(ctx context.Context, change func(*storagev1.CSINode)) error {
	node, name := s.cfg.Node(), s.cfg.NodeName
	if node.UID == "" {
		return fmt.Errorf("node %q is not registered yet", name)
	}
	old := &storagev1.CSINode{}
	err := s.get(ctx, s.cfg.Storage, "csinodes", "", name, old)
	if apierrors.IsNotFound(err) {
		return s.createCSINode(ctx, node.UID, change)
	}
	if err != nil {
		return err
	}
	owns := func(o metav1.OwnerReference) bool { return o.Kind == "Node" && o.UID == node.UID }
	if !slices.ContainsFunc(old.OwnerReferences, owns) {
		err := client.BoundedWrite(ctx, func(ctx context.Context) error {
			return s.cfg.Storage.Delete().Resource("csinodes").Name(name).Do(ctx).Error()
		})
		return errors.Join(errStaleOwner, err)
	}
	next := old.DeepCopy()
	annotate(next)
	change(next)
	if equality.Semantic.DeepEqual(old, next) {
		return nil
	}
	return client.BoundedWrite(ctx, func(ctx context.Context) error {
		return s.cfg.Storage.Put().Resource("csinodes").Name(name).Body(next).Do(ctx).Error()
	})
}

// createCSINode creates a CSINode of the Node with this UID. Without the Node it would be deleted at once.
func (s *Storage) createCSINode(ctx context.Context, owner types.UID, change func(*storagev1.CSINode)) error {
	name, node := s.cfg.NodeName, &corev1.Node{}
	switch err := s.get(ctx, s.cfg.Core, "nodes", "", name, node); {
	case err != nil:
		return err
	case node.UID != owner:
		return errStaleOwner
	}
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: name, UID: owner}}}}
	n.Spec.Drivers = []storagev1.CSINodeDriver{}
	annotate(n)
	change(n)
	return client.BoundedWrite(ctx, func(ctx context.Context) error {
		return s.cfg.Storage.Post().Resource("csinodes").Body(n).Do(ctx).Error()
	})
}

func annotate(n *storagev1.CSINode) {
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[corev1.MigratedPluginsAnnotationKey] = strings.Join(migrated, ",")
}

// labelNode adds the topology of drivers to the Node's labels and their node IDs to an annotation. A label with another
// value is an error: volumes may rely on it. drivers is called while csiNode is held: a driver that goes is first no
// longer registered, and then loses its ID under the same lock, so what this adds for it does not stay.
func (s *Storage) labelNode(ctx context.Context, drivers func() []NodeDriver) error {
	s.csiNode.Lock() // two drivers that register at once write one annotation
	defer s.csiNode.Unlock()
	node, ids, err := s.nodeAndIDs(ctx)
	if err != nil {
		return err
	}
	labels, before := map[string]string{}, maps.Clone(ids)
	var errs []error
	for _, d := range drivers() {
		if err := d.addLabels(labels, node.Labels); err != nil {
			errs = append(errs, err)
			continue
		}
		ids[d.Name] = d.NodeID
	}
	if len(labels) > 0 || !maps.Equal(ids, before) {
		errs = append(errs, s.patchNode(ctx, labels, ids))
	}
	return errors.Join(errs...)
}

// addLabels adds the driver's topology to labels, as far as the Node does not have it.
func (d NodeDriver) addLabels(labels, ofNode map[string]string) error {
	added := map[string]string{}
	for k, v := range d.Topology {
		old, there := ofNode[k]
		if !there {
			old, there = labels[k]
		}
		if there && old != v {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q",
				k, v, k, old)
		}
		if !there {
			added[k] = v
		}
	}
	maps.Copy(labels, added)
	return nil
}

// removeID removes a driver's node ID from the annotation of the Node.
func (s *Storage) removeID(ctx context.Context, driver string) error {
	s.csiNode.Lock()
	defer s.csiNode.Unlock()
	_, ids, err := s.nodeAndIDs(ctx)
	if _, there := ids[driver]; err != nil || !there {
		return err
	}
	delete(ids, driver)
	return s.patchNode(ctx, map[string]string{}, ids)
}

// nodeAndIDs reads the Node and the node IDs that it names, by driver.
func (s *Storage) nodeAndIDs(ctx context.Context) (*corev1.Node, map[string]string, error) {
	node := &corev1.Node{}
	if err := s.get(ctx, s.cfg.Core, "nodes", "", s.cfg.NodeName, node); err != nil {
		return nil, nil, err
	}
	ids, err := nodeIDs(node)
	return node, ids, err
}

// nodeIDs returns the node IDs that the Node names, by driver.
func nodeIDs(node *corev1.Node) (map[string]string, error) {
	var ids map[string]string
	if text := node.Annotations[nodeIDAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			return nil, fmt.Errorf("annotation %s of the Node is not a JSON map: %w", nodeIDAnnotation, err)
		}
	}
	if ids == nil { // also if the text is null
		ids = map[string]string{}
	}
	return ids, nil
}

// patchNode adds labels to the Node, and exchanges the node IDs of its drivers. Without IDs there is no annotation.
func (s *Storage) patchNode(ctx context.Context, labels, ids map[string]string) error {
	var annotation *string
	if len(ids) > 0 {
		text, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		annotation = new(string(text))
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels,
		"annotations": map[string]*string{nodeIDAnnotation: annotation}}})
	if err != nil {
		return err
	}
	return client.BoundedWrite(ctx, func(ctx context.Context) error {
		return s.cfg.Core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(s.cfg.NodeName).SubResource("status").
			Body(patch).Do(ctx).Error()
	})
}
