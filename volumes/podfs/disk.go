package podfs

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// maxOnDisk bounds what the agent writes into the configMap volumes of one pod. A pod of a megabyte can show a value of
// a megabyte ten thousand times: the disk would be full before an eviction could help, and other pods would wait for
// their volumes meanwhile.
const maxOnDisk = 256 << 20

// diskUse has what the configMap volumes of pods have, by name, as far as this run of the agent has written it. The
// zero value is ready.
type diskUse struct {
	mu   sync.Mutex
	pods map[types.UID]map[string]int64
}

// set notes what a volume will have. It is an error if the volumes of the pod would have too much then.
func (d *diskUse) set(uid types.UID, volume string, size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := size
	for name, n := range d.pods[uid] {
		if name != volume {
			sum += n
		}
	}
	if sum > maxOnDisk {
		return fmt.Errorf("the configMap volumes of the pod would have %s with it, and may have %s: "+
			"use an image or a PersistentVolumeClaim",
			resource.NewQuantity(sum, resource.BinarySI), resource.NewQuantity(maxOnDisk, resource.BinarySI))
	}
	if d.pods == nil {
		d.pods = map[types.UID]map[string]int64{}
	}
	if d.pods[uid] == nil {
		d.pods[uid] = map[string]int64{}
	}
	d.pods[uid][volume] = size
	return nil
}

// forget removes a volume.
func (d *diskUse) forget(uid types.UID, volume string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pods[uid], volume)
	if len(d.pods[uid]) == 0 {
		delete(d.pods, uid)
	}
}
