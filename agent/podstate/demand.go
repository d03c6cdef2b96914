package podstate

import podutil "github.com/nodelet/nodelet/kube/pod"

// Demand is what pods request together, as far as the cgroups of their QoS classes depend on it.
type Demand struct {
	// BurstableCPU is what burstable pods request, in thousandths of a CPU.
	BurstableCPU int64
	// GuaranteedMemory and BurstableMemory are what the pods of these classes request, in bytes.
	GuaranteedMemory, BurstableMemory int64
}

// Plus returns the sum of two demands.
func (d Demand) Plus(o Demand) Demand {
	return Demand{
		BurstableCPU:     podutil.Sum(d.BurstableCPU, o.BurstableCPU),
		GuaranteedMemory: podutil.Sum(d.GuaranteedMemory, o.GuaranteedMemory),
		BurstableMemory:  podutil.Sum(d.BurstableMemory, o.BurstableMemory),
	}
}
