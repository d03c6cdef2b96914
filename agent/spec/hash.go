package spec

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// ContainerHash is the value of the annotation io.kubernetes.container.hash: what of a container's spec a
// running instance cannot change. Since v1.31 the kubelet takes name and image alone, and holds the recipe
// fixed so that its own upgrades restart nothing; so does this: FNV-1a (32 bit) over the JSON of both,
// written as the text of a byte slice.
func ContainerHash(c *corev1.Container) string {
	// A map of strings has its keys sorted and always encodes.
	encoded, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	h := fnv.New32a()
	fmt.Fprintf(h, "([]uint8)%v", encoded)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// recordedHash is a recorded ContainerHash; empty where it is missing or no such hash. An agent with
// another recipe has recorded that: its containers are adopted, not restarted.
func recordedHash(text string) string {
	if _, err := strconv.ParseUint(text, 16, 32); err != nil {
		return ""
	}
	return text
}
