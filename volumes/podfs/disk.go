package podfs

import (
	"fmt"
	"maps"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// maxOnDisk bounds what the agent writes into the configMap volumes of one pod. A pod of a megabyte can show a value of
// a megabyte ten thousand times: the disk would be full before an eviction could help, and other pods would wait for
// their volumes meanwhile.
const maxOnDisk = 256 << 20

// diskUse has what the configMap volumes of pods have.
type diskUse struct{ sums }

// grow notes what a volume will have. It is an error if the volumes of the pod would have too much then.
func (d *diskUse) grow(uid types.UID, volume string, size int64) error {
	if sum := d.set(uid, volume, size, maxOnDisk); sum > maxOnDisk {
		return fmt.Errorf("the configMap volumes of the pod would have %s with it, and may have %s: "+
			"use an image or a PersistentVolumeClaim",
			resource.NewQuantity(sum, resource.BinarySI), resource.NewQuantity(maxOnDisk, resource.BinarySI))
	}
	return nil
}

// sums has the sizes of what this run of the agent has made for pods, by name. The zero value is ready.
type sums struct {
	mu   sync.Mutex
	pods map[types.UID]map[string]int64
}

// set notes the size of something, and returns what the pod has with it. If that is more than most, it is not noted.
func (s *sums) set(uid types.UID, name string, size, most int64) (sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum = size
	for other, n := range s.pods[uid] {
		if other != name {
			sum += n
		}
	}
	if sum > most {
		return sum
	}
	if s.pods == nil {
		s.pods = map[types.UID]map[string]int64{}
	}
	if s.pods[uid] == nil {
		s.pods[uid] = map[string]int64{}
	}
	s.pods[uid][name] = size
	return sum
}

// forget removes what has this name, and what has a path below it.
func (s *sums) forget(uid types.UID, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pods[uid], func(other string, _ int64) bool {
		return other == name || strings.HasPrefix(other, name+"/")
	})
	if len(s.pods[uid]) == 0 {
		delete(s.pods, uid)
	}
}
