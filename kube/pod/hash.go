package pod

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// ContainerHash returns the value of the annotation io.kubernetes.container.hash. It covers the fields of a
// container's spec that cannot change while an instance runs. Since v1.31 the kubelet hashes only name and image, and
// keeps the algorithm stable so that its upgrades restart no containers. This is the same algorithm: FNV-1a (32 bit)
// of the JSON of both fields, printed as the text of a byte slice.
func ContainerHash(c *corev1.Container) string {
	// The JSON of a map of strings has sorted keys, and encoding it cannot fail.
	encoded, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	h := fnv.New32a()
	fmt.Fprintf(h, "([]uint8)%v", encoded)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
