package config

import (
	"encoding/json"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// defaultEvictionHard are the kubelet's thresholds on Linux.
var defaultEvictionHard = map[string]string{
	"memory.available":   "100Mi",
	"nodefs.available":   "10%",
	"nodefs.inodesFree":  "5%",
	"imagefs.available":  "15%",
	"imagefs.inodesFree": "5%",
}

// setDefaults sets what is not set to the kubelet's defaults on Linux. It runs after the files and before the
// flags, so that a flag can set zero.
func setDefaults(c *KubeletConfiguration) {
	c.APIVersion, c.Kind = APIVersion, Kind
	// A shorter update frequency also shortens the report frequency, unless that is set too.
	if c.NodeStatusReportFrequency.Duration == 0 {
		c.NodeStatusReportFrequency = c.NodeStatusUpdateFrequency
	}
	if c.SerializeImagePulls == nil {
		c.SerializeImagePulls = new(ptr.Deref(c.MaxParallelImagePulls, 1) <= 1)
	}
	if c.ImagePullCredentialsVerificationPolicy == "" && gateEnabled(c.FeatureGates, "KubeletEnsureSecretPulledImages") {
		c.ImagePullCredentialsVerificationPolicy = "NeverVerifyPreloadedImages"
	}
	crashLoop := &c.CrashLoopBackOff
	if crashLoop.MaxContainerRestartPeriod == nil && gateEnabled(c.FeatureGates, "KubeletCrashLoopBackOffMax") {
		crashLoop.MaxContainerRestartPeriod = &metav1.Duration{Duration: 5 * time.Minute}
	}
	for i := range settingTable {
		settingTable[i].setDefault(c)
	}
	if *c.PodPidsLimit < 0 {
		*c.PodPidsLimit = -1
	}
	if c.EvictionHard == nil {
		c.EvictionHard = maps.Clone(defaultEvictionHard)
	}
}

// defaults returns the configuration of the kubelet's defaults.
var defaults = sync.OnceValue(func() *KubeletConfiguration {
	c := &KubeletConfiguration{}
	setDefaults(c)
	return c
})

// setDefault sets the field of a setting to its default if it has no value.
func (k *setting) setDefault(c *KubeletConfiguration) {
	if k.field == "" || k.def == "" {
		return
	}
	field := fieldAt(c, k.field, true)
	if !field.IsZero() {
		return
	}
	var value any = k.def
	if json.Valid([]byte(k.def)) {
		value = json.RawMessage(k.def)
	}
	if err := set(field, k.field, value); err != nil {
		panic("config: wrong default: " + err.Error())
	}
}
